#pragma once
// What a page may run and load, as a Content-Security-Policy: nothing from elsewhere, and of what is in the page only
// the style sheets and scripts that we wrote, named by their hashes. Markup that came in through data runs nothing.

#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

struct PageSources {
  std::vector<std::string_view> styles, scripts;  // exactly what is between the tags
  bool blob_scripts = false;                      // scripts that ours unpack and load (the page's Plotly)
};
// The value of <meta http-equiv=Content-Security-Policy>; holds no double quote.
std::string content_security_policy(const PageSources& sources);

}  // namespace flashcore
