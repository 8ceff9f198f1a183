#pragma once
// bench: times one candidate per problem of a suite, dispatch's choice or a pinned one, and writes it down in the form
// of results/<device>/<suite>.json. verify: does such a file still describe the source as it stands.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/suite.h"
#include "lab/measure/spec.h"
#include "lab/record/checkout.h"
#include "lab/record/store.h"
#include "lab/record/trial.h"

namespace flashcore {

inline constexpr const char* kBenchSchema = "flashcore.bench/1";  // of `flashcore bench --json`

struct BenchOptions : MeasurementSpec {  // max_seconds: per problem
  std::string device;                    // as open_device
  Suite suite;
  std::optional<std::string> candidate;  // "family" or "family:key=value,..."; none: what dispatch picks
  int min_samples = 0;                   // 0: by default of the phase
  std::string worker_executable;         // as Worker; tests give their own
};

struct BenchResult {
  std::string run;
  std::vector<Trial> trials;  // one per problem, in the suite's order, failures included
  bool interrupted = false;
};

// Every Trial goes through a worker process and, where there is a store, into it (append_or_note). A problem that no
// family runs, or that the pinned family does not run, becomes a Trial that ended "invalid" with the reasons.
BenchResult bench(const BenchOptions& options, Store* store, const std::function<void(const Trial&)>& progress,
                  const std::function<bool()>& stop);

// {"schema": "flashcore.bench/1", "source_hash": ..., "results": [one object per trial]}. Times in microseconds; a
// trial that was not timed has "time_us": null and says in "ended" and "message" why. One that was keeps its raw
// samples (lab/compare/peer_rows.h). `checkout`: that it was measured in, for the environment of each.
nlohmann::json bench_json(const std::vector<Trial>& trials, const std::optional<Checkout>& checkout = std::nullopt);

// One of its results, without raw samples: a peer run keeps them by session.
nlohmann::json bench_row(const Trial& trial);

struct Verification {
  bool fresh = false;         // never of a file in which nothing was timed
  bool did_not_pass = false;  // a self-test that says so itself, fresh or not
  std::size_t timed = 0;      // results with a time; of a self-test its parts
  std::string reason;         // one sentence
  struct StaleRow {
    std::size_t row;  // in the file's order
    std::string name, why;
  };
  std::vector<StaleRow> stale;
  std::vector<StaleRow> unknown;  // neither fresh nor stale: their text has changed, and their code cannot be compared
  std::vector<StaleRow> same_code;  // fresh: their text has changed, and compiles to the same machine code
  std::string incomplete;           // why it is no whole run; never fresh. Not asked of flashcore.bench/1
  std::vector<std::string> wrong;   // what does not hold together (lab/verify/audit.h, claims.h); never fresh
  // Problems with speed-ups over peers and no raw samples: nobody can check those figures. Fresh or not, never
  // confirmed.
  std::vector<std::string> without_samples;
  // Problems with times of ours alone and no raw samples, as bench wrote them once: nothing confirms those times. Told,
  // and no fault of the file.
  std::vector<std::string> times_without_samples;
  std::vector<std::string> remarks;  // on sessions, as Audit::remarks, and as Claims::remarks (lab/verify/claims.h)
  // Of a file of one suite that ships: the names of its problems that no row is of. No fault of the file.
  std::string suite;
  std::size_t suite_problems = 0;
  std::vector<std::string> unmeasured;
};
// Error kBadInput if the file cannot be read or is not a flashcore.bench/1 file with at least one result.
// One of `ab --self-test` is judged too, as lab/verify/self_test_file.h says.
// `recompute`: also what takes a compiler and minutes (lab/verify/recompute.h). The text alone is asked for no commits.
Verification verify_results(const std::filesystem::path& file, bool recompute = false);
Verification verify_results_text(std::string_view text, const std::string& origin, bool recompute = false);

// The same file with figures that its raw samples and ceilings give now (lab/verify/audit.h), then with
// record_provenance (lab/record/freshness.h) of each row, and of how many rows either changed anything. Nothing of a
// file that the audit finds wrong all the same: `wrong` has its words. Error kBadInput for what would not be written
// back as it was: a byte order mark, CR LF, an integer beyond 64 bits.
// Rows without a digest get other figures only if `rederive`, and say so from then on: that their figures do not follow
// may be an older flashcore's doing, or an edit of their samples.
struct RecordedProvenance {
  std::string text;
  std::size_t rows = 0, derived = 0;
  std::size_t not_derived = 0;  // would get other figures by `rederive`
  std::vector<std::string> wrong;
};
RecordedProvenance with_provenance(std::string_view text, const std::string& origin, bool rederive = false);

}  // namespace flashcore
