// report_example FILE.html: the report of invented trials, for tests/report_browser_test.py.
#include <cstdio>

#include "core/files.h"
#include "lab/example_diagnoses.h"
#include "lab/example_trials.h"
#include "lab/report/report.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: report_example FILE.html\n");
    return 3;
  }
  flashcore::write_file_atomically(
      argv[1], flashcore::report_html(
                   flashcore::example::tuned_suite(),
                   [](const flashcore::Trial& t) { return t.source_hash == flashcore::example::kCurrent; },
                   flashcore::example::diagnoses()));
  return 0;
}
