#pragma once
// The verbs, one file each. add_<verb> declares the verb's flags on `app` and returns what runs it; the result of
// running is the exit code (common.h).

#include <CLI/CLI.hpp>
#include <functional>

namespace flashcore::cli {

using Run = std::function<int()>;

Run add_doctor(CLI::App& app);
Run add_check(CLI::App& app);
Run add_compile(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_peers(CLI::App& app);
Run add_ab(CLI::App& app);
Run add_tune(CLI::App& app);
Run add_leaderboard(CLI::App& app);
Run add_economics(CLI::App& app);
Run add_crosscheck(CLI::App& app);
Run add_campaign(CLI::App& app);
Run add_gate(CLI::App& app);
Run add_report(CLI::App& app);
Run add_run(CLI::App& app);
Run add_verify(CLI::App& app);
Run add_experiment(CLI::App& app);
Run add_profile(CLI::App& app);
Run add_invert(CLI::App& app);
Run add_explain(CLI::App& app);
Run add_timeline(CLI::App& app);
Run add_problem(CLI::App& app);
Run add_warmup(CLI::App& app);
Run add_submit(CLI::App& app);
Run add_mcp(CLI::App& app);
// Hidden: the child process that lab/process/worker.h starts.
Run add_worker(CLI::App& app);
// Hidden: the process that runs others' kernels on the emulator (device/emulator/executor.h).
Run add_execute_kernel(CLI::App& app);
// Hidden: the laboratory's own party of a peer run (lab/process/timer_server.h).
Run add_timer_server(CLI::App& app);
// Hidden: what Nsight Compute runs (lab/diagnose/gather.h).
Run add_launch_candidate(CLI::App& app);
// Hidden: confines itself and becomes a proposer (lab/process/confined.h).
Run add_confine(CLI::App& app);

}  // namespace flashcore::cli
