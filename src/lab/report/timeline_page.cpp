#include "lab/report/timeline_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lab/report/assets.h"
#include "lab/report/content_policy.h"
#include "lab/report/text.h"

namespace flashcore {
namespace {

using nlohmann::json;
using report::count;

std::string shown(std::string_view value) { return escape_html(value); }

std::string page_fact(std::string_view name, const std::string& value) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", shown(name), shown(value));
}

// "12.3 µs (22,140 cycles)", or steps.
std::string length_of(const Timeline& timeline, double ticks) {
  const std::string plain = fmt::format("{} {}", report::number(ticks), timeline.unit());
  return timeline.clock_mhz > 0 ? fmt::format("{} ({})", report::time(ticks / timeline.clock_mhz), plain) : plain;
}

std::string build_words(const Distortion& d) {
  if (!d.plain_build || !d.instrumented_build) return {};
  const KernelFacts &plain = *d.plain_build, &marked = *d.instrumented_build;
  return fmt::format("{} registers against {}, spilled bytes {} against {}", marked.registers, plain.registers,
                     marked.spill_store_bytes + marked.spill_load_bytes,
                     plain.spill_store_bytes + plain.spill_load_bytes);
}

std::string timeline_header(const Timeline& t) {
  std::string out =
      fmt::format("<header><p class=brand>flashcore timeline</p><h1>{}</h1><dl class=facts>", shown(t.candidate));
  out += page_fact("problem", t.problem.id());
  out += page_fact("device", t.device.name);
  out += page_fact("recorded", fmt::format("{} of {} CTAs, {} warps", count(static_cast<std::int64_t>(t.recorded_ctas)),
                                           count(static_cast<std::int64_t>(t.launched_ctas)), t.tracks.size()));
  out += page_fact("from the first mark to the last", length_of(t, static_cast<double>(t.marked())));
  out += page_fact("some warp of a CTA in Q·K or P·V", report::percent(multiplying_share(t)));
  out += page_fact("distortion", t.distortion.sentence());
  if (const std::string words = build_words(t.distortion); !words.empty()) out += page_fact("with marks", words);
  out += "</dl>";
  if (t.device.limits.emulated)
    out +=
        "<p class=notice role=note>The emulator has no time: a step is one instruction of a warp that the emulator "
        "sees, copies take none, and whoever waits goes on at the step of whoever it waited for. Lanes show order and "
        "dependence, not speed.</p>";
  else if (t.clock_mhz <= 0)
    out +=
        "<p class=notice role=note>The clock is not known: lengths are in cycles, and lanes of different SMs do not "
        "lie "
        "side by side.</p>";
  if (t.dropped > 0)
    out += fmt::format(
        "<p class=notice role=note><b>Not the whole launch.</b> {} records found no place in their tracks, so shares "
        "are of the beginning of each; record fewer CTAs.</p>",
        count(static_cast<std::int64_t>(t.dropped)));
  for (const std::string& fault : t.faults)
    out += fmt::format("<p class=notice role=alert><b>Not to be believed:</b> {}.</p>", shown(fault));
  return out + "</header>\n";
}

std::string sums_table(const Timeline& t) {
  std::string rows;
  for (const ActivitySum& sum : activity_sums(t))
    rows += fmt::format(
        "<tr><th scope=row>{}</th><td><span class=\"swatch a-{}\"></span>{}</td><td class=num data-sort=\"{}\">{}</td>"
        "<td class=num data-sort=\"{}\">{}</td><td class=num data-sort=\"{}\">{}</td></tr>\n",
        word_of(sum.role), word_of(sum.activity), shown(title_of(sum.activity)), sum.share,
        shown(report::percent(sum.share)), sum.count, count(static_cast<std::int64_t>(sum.count)), sum.median,
        shown(length_of(t, sum.median)));
  return fmt::format(
      "<div class=scroll tabindex=0 role=region aria-labelledby=sums-h><table id=sums><caption>The shares of a role "
      "are "
      "of its warps' time from their first mark to their last. A multiply is asynchronous: its time is that of issuing "
      "it and of waiting for its result.</caption><thead><tr><th>role</th><th>activity</th><th>share</th><th>times</th>"
      "<th>median</th></tr></thead><tbody>\n{}</tbody></table></div>",
      rows);
}

// The tracks that are drawn, with activities as numbers.
json lanes_of(const Timeline& t, std::size_t& left_out) {
  json lanes = json::array();
  std::size_t drawn = 0;
  std::set<std::uint32_t> ctas;
  for (const Track& track : t.tracks) {
    if (drawn > 0 && !ctas.contains(track.cta) && drawn + track.segments.size() > kMostDrawnSegments) {
      ++left_out;
      continue;
    }
    ctas.insert(track.cta);
    drawn += track.segments.size();
    json segments = json::array();
    for (const Segment& s : track.segments) {
      segments.push_back(static_cast<unsigned>(s.activity));
      segments.push_back(s.item);
      segments.push_back(s.begin);
      segments.push_back(s.end);
    }
    lanes.push_back({{"role", word_of(track.role)},
                     {"cta", track.cta},
                     {"warp", track.warp},
                     {"sm", track.sm ? json(*track.sm) : json()},
                     {"segments", std::move(segments)}});
  }
  return lanes;
}

json page_data(const Timeline& t, std::size_t& left_out) {
  json activities = json::array();
  activities.push_back(json());
  for (unsigned a = 1; a < static_cast<unsigned>(tile::Activity::kEnd); ++a) {
    const auto activity = static_cast<tile::Activity>(a);
    activities.push_back({{"word", word_of(activity)}, {"title", title_of(activity)}, {"wait", is_wait(activity)}});
  }
  return {{"unit", t.unit()},
          {"per_us", t.clock_mhz},
          {"end", t.end()},
          {"activities", std::move(activities)},
          {"lanes", lanes_of(t, left_out)}};
}

// "</script>" inside the data would end the block early; in JSON a "<" may be written as an escape.
std::string data_block(const json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', false, json::error_handler_t::replace)) c == '<' ? out += "\\u003c" : out += c;
  return out;
}

}  // namespace

std::string timeline_html(const Timeline& t) {
  const auto& assets = embedded_report_assets();
  const std::string style = std::string(assets.at("report.css")) + std::string(assets.at("timeline.css"));
  const std::string_view script = assets.at("timeline.js");
  std::size_t left_out = 0;
  const std::string data = data_block(page_data(t, left_out));
  const std::string note = left_out == 0 ? ""
                                         : fmt::format(
                                               "<p class=notice role=note>{} more warps are in the trace file "
                                               "and not on this page.</p>",
                                               left_out);
  return fmt::format(
      "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<title>flashcore timeline: {0}</title>\n"
      "<meta http-equiv=Content-Security-Policy content=\"{1}\">\n<meta name=viewport content=\"width=device-width, "
      "initial-scale=1\">\n<meta name=color-scheme content=\"light dark\">\n<link rel=icon href=\"data:,\">\n"
      "<style>{2}</style>\n</head>\n<body>\n<main>\n{3}"
      "<section aria-labelledby=lanes-h><h2 id=lanes-h>Lanes</h2>{4}<noscript><p class=notice>Lanes need JavaScript. "
      "The sums are in the table below.</p></noscript>\n"
      "<figure><div class=figure-head><label>CTA <select id=cta></select></label><div class=zoom role=group "
      "aria-label=zoom><button type=button id=zoom-in>zoom in</button><button type=button id=zoom-out>zoom out"
      "</button><button type=button id=left>◀</button><button type=button id=right>▶</button><button type=button "
      "id=whole>whole</button></div></div><div id=lanes role=img aria-labelledby=lanes-h></div><p id=under "
      "class=muted aria-live=polite>&nbsp;</p><ul id=legend></ul><figcaption>Wheel: zoom; drag: move. A lane is one "
      "warp, or the one thread of it that has the role.</figcaption></figure></section>\n"
      "<section aria-labelledby=sums-h><h2 id=sums-h>Where the time went</h2>\n{5}</section>\n</main>\n"
      "<footer>flashcore {6}</footer>\n<script type=\"application/json\" id=data>{7}</script>\n<script>{8}</script>\n"
      "</body>\n</html>\n",
      shown(t.candidate), content_security_policy({.styles = {style}, .scripts = {script}}), style, timeline_header(t),
      note, sums_table(t), FLASHCORE_VERSION, data, script);
}

}  // namespace flashcore
