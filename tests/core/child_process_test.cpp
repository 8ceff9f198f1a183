#include "core/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "core/process_end.h"

namespace flashcore {
namespace {

using Clock = ChildProcess::Clock;
using Talk = ChildProcess::Talk;
using std::chrono::milliseconds;
using std::chrono::seconds;

// What a test gives a child that behaves; a loaded machine needs no more.
Clock::time_point soon() { return Clock::now() + seconds(60); }

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

bool mentions(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

// Zombies do not count: nothing of them runs.
bool runs(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  return std::getline(stat, text) && text.find(") Z ") == std::string::npos;
}

bool is_gone_soon(pid_t pid) {
  for (int i = 0; i < 3000 && runs(pid); ++i) std::this_thread::sleep_for(milliseconds(10));
  return !runs(pid);
}

pid_t read_pid(ChildProcess& child) {
  std::string line;
  EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
  return std::atoi(line.c_str());
}

TEST(ChildProcess, LinesGoThereAndBack) {
  ChildProcess child(shell("while read -r x; do echo \"<$x>\"; done; exit 3"));
  for (const std::string word : {"one", "", "three"}) {
    std::string line;
    EXPECT_EQ(child.send_line(word, soon(), {}), Talk::kDone);
    EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
    EXPECT_EQ(line, "<" + word + ">");
  }
}

TEST(ChildProcess, AnInterruptReachesTheWholeGroupAndLetsItSave) {
  ChildProcess child(shell("trap 'echo saved; exit 2' INT; echo ready; while :; do sleep 0.1; done"));
  std::string line;
  ASSERT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
  child.interrupt();
  ASSERT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
  EXPECT_EQ(line, "saved");
  EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kClosed);
  EXPECT_EQ(child.how_it_ended(), "exited with code 2");
}

// Half a line is no answer; whoever keeps a log wants it all the same.
TEST(ChildProcess, WhatLacksItsNewlineIsNoLineAndIsKept) {
  ChildProcess child(shell("echo whole; printf half"));
  std::string line;
  ASSERT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
  EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kClosed);
  EXPECT_EQ(line, "whole");
  EXPECT_EQ(child.take_unfinished_line(), "half");
  EXPECT_EQ(child.take_unfinished_line(), "");
}

// A shell's background job ignores SIGINT, and so does all that it starts.
TEST(ChildProcess, AnInterruptArrivesWhereTheProgramIgnoresIt) {
  const auto before = signal(SIGINT, SIG_IGN);
  ChildProcess child(shell("trap 'exit 2' INT; echo ready; while :; do sleep 0.1; done"));
  signal(SIGINT, before);
  std::string line;
  ASSERT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
  child.interrupt();
  EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kClosed);
  EXPECT_EQ(child.how_it_ended(), "exited with code 2");
}

TEST(ChildProcess, LargeLinesBothWaysDoNotWaitForEachOther) {
  ChildProcess child({"/bin/cat"});
  const std::string large(std::size_t{8} << 20, 'x');
  std::string line;
  ASSERT_EQ(child.send_line(large, soon(), {}), Talk::kDone);  // cat writes before it has read everything
  ASSERT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
  EXPECT_EQ(line, large);
}

TEST(ChildProcess, AFloodWithoutANewlineIsNamed) {
  ChildProcess child({"/bin/cat", "/dev/zero"}, std::size_t{1} << 20);
  std::string line;
  EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kFlood);
}

TEST(ChildProcess, AFloodOfLinesDoesNotOutwriteTheDeadline) {
  ChildProcess child(shell("exec yes"));
  const auto deadline = Clock::now() + milliseconds(300);
  std::string line;
  Talk talk = Talk::kDone;
  while (talk == Talk::kDone) talk = child.read_line(line, deadline, {});
  EXPECT_EQ(talk, Talk::kTimeout);
  EXPECT_EQ(child.read_line(line, soon(), [] { return true; }), Talk::kCancelled);
}

TEST(ChildProcess, AFloodOfStderrIsCutAndDoesNotOutwriteTheDeadline) {
  ChildProcess child(shell("yes mistake >&2"));
  std::string line;
  EXPECT_EQ(child.read_line(line, Clock::now() + milliseconds(300), {}), Talk::kTimeout);
  child.kill();
  const std::string words = child.stderr_tail();
  EXPECT_TRUE(mentions(words, "bytes of its stderr cut] ") && mentions(words, "mistake")) << words;
  EXPECT_LT(words.size(), 5000U);
}

TEST(ChildProcess, WhoDoesNotReadIsTimedOutOrCancelled) {
  ChildProcess child(shell("exec sleep 1000"));
  const std::string large(std::size_t{8} << 20, 'x');
  EXPECT_EQ(child.send_line(large, Clock::now() + milliseconds(200), {}), Talk::kTimeout);
  EXPECT_EQ(child.send_line(large, soon(), [] { return true; }), Talk::kCancelled);
  std::string line;
  EXPECT_EQ(child.read_line(line, soon(), [] { return true; }), Talk::kCancelled);
}

TEST(ChildProcess, WhoClosesItsStreamsAndLivesIsEnded) {
  ChildProcess child(shell("exec sleep 1000 <&- >&- 2>&-"));
  std::string line;
  EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kClosed);
  const auto start = Clock::now();
  EXPECT_TRUE(mentions(child.how_it_ended(), "lived on"));
  EXPECT_LT(Clock::now() - start, seconds(60));
}

TEST(ChildProcess, WhoIgnoresSignalsIsEndedToo) {
  ChildProcess child(shell("trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"));
  std::string line;
  ASSERT_EQ(child.read_line(line, soon(), {}), Talk::kDone);
  child.kill();
  EXPECT_TRUE(mentions(child.how_it_ended(), "SIGKILL")) << child.how_it_ended();
}

// One stays in the process group, one leaves it with its session, one is an orphan before the kill.
constexpr const char* kGrandchildren =
    "sleep 1000 & echo $!; setsid sh -c 'echo $$; exec sleep 1000' & "
    "(setsid sh -c 'echo $$; exec sleep 1000' &) ; ";

TEST(ChildProcess, GrandchildrenEndWhenItIsKilled) {
  ChildProcess child(shell(std::string(kGrandchildren) + "exec sleep 1000"));
  std::vector<pid_t> pids;
  for (int i = 0; i < 3; ++i) pids.push_back(read_pid(child));
  child.kill();
  for (const pid_t pid : pids) EXPECT_TRUE(pid > 1 && is_gone_soon(pid)) << pid;
}

TEST(ChildProcess, GrandchildrenEndWhenItEnds) {
  ChildProcess child(shell(std::string(kGrandchildren) + "read -r x; exit 3"));
  std::vector<pid_t> pids;
  for (int i = 0; i < 3; ++i) pids.push_back(read_pid(child));
  ASSERT_EQ(child.send_line("go", soon(), {}), Talk::kDone);
  std::string line;
  // They hold its stdout open; it closes nevertheless.
  EXPECT_EQ(child.read_line(line, soon(), {}), Talk::kClosed);
  EXPECT_EQ(child.how_it_ended(), "exited with code 3");
  for (const pid_t pid : pids) EXPECT_TRUE(pid > 1 && is_gone_soon(pid)) << pid;
}

TEST(ChildProcess, EverybodyEndsWhenTheParentIsKilled) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ChildProcess child(shell(std::string(kGrandchildren) + "echo $$; exec sleep 1000"));
    for (int i = 0; i < 4; ++i) {
      const pid_t pid = read_pid(child);
      (void)!write(ends[1], &pid, sizeof pid);
    }
    pause();
    _exit(0);
  }
  std::vector<pid_t> pids(4);
  for (pid_t& pid : pids) ASSERT_EQ(read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  for (const pid_t pid : pids) EXPECT_TRUE(pid > 1 && is_gone_soon(pid)) << pid;
  close(ends[0]);
  close(ends[1]);
}

TEST(ChildProcess, ItsEndIsToldAsItWas) {
  std::string line;
  ChildProcess crashed(shell("ulimit -c 0; echo 'last words' >&2; kill -SEGV $$"));
  EXPECT_EQ(crashed.read_line(line, soon(), {}), Talk::kClosed);
  EXPECT_TRUE(mentions(crashed.how_it_ended(), "was ended by signal SIGSEGV")) << crashed.how_it_ended();
  EXPECT_EQ(crashed.stderr_tail(), "last words");

  ChildProcess none({"/no/such/program"});
  EXPECT_EQ(none.read_line(line, soon(), {}), Talk::kClosed);
  EXPECT_EQ(none.how_it_ended(), "exited with code 127");
  EXPECT_TRUE(mentions(none.stderr_tail(), "cannot be executed: No such file")) << none.stderr_tail();
}

TEST(ChildProcess, WorksWhereNobodyReapsAndWhereNoStreamsAre) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    signal(SIGCHLD, SIG_IGN);
    for (int fd : {0, 1, 2}) close(fd);
    ChildProcess child(shell("read -r x; echo \"<$x>\"; exec sleep 1000 >&-"));
    std::string line;
    const bool good = child.send_line("x", soon(), {}) == Talk::kDone &&
                      child.read_line(line, soon(), {}) == Talk::kDone && line == "<x>";
    child.kill();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(parent, &status, 0);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(RunProgram, OutputAndCodeComeBack) {
  const ProgramResult result = run_program({"sh", "-c", "echo out; echo err >&2; cat; exit 5"}, {});
  EXPECT_TRUE(result.started);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.output, "out\nerr\n");
  EXPECT_EQ(result.stopped, "");
  EXPECT_FALSE(run_program({"no-such-program-anywhere"}, {}).started);
  // Nobody's compiler is looked for in the current folder.
  const std::string path = std::getenv("PATH");
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path("/bin");
  setenv("PATH", ".::../bin", 1);
  EXPECT_FALSE(run_program({"sh", "-c", ""}, {}).started);
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(find_program("./sh"), (std::filesystem::current_path() / "./sh").string());
  std::filesystem::current_path(here);
  EXPECT_TRUE(find_program("sh").starts_with("/"));
}

TEST(RunProgram, AHangIsEnded) {
  const auto start = Clock::now();
  const ProgramResult result = run_program({"sleep", "1000"}, {.seconds = 0.2});
  EXPECT_TRUE(mentions(result.stopped, "still running after 0.2 s")) << result.stopped;
  EXPECT_NE(result.exit_code, 0);
  EXPECT_LT(Clock::now() - start, seconds(60));
}

TEST(RunProgram, WhoeverAsksMayEndIt) {
  for (const char* program : {"sleep 1000", "exec >&- 2>&-; sleep 1000"}) {
    const auto start = Clock::now();
    const ProgramResult result = run_program(
        {"sh", "-c", program}, {.seconds = 600, .cancelled = [&] { return Clock::now() > start + milliseconds(300); }});
    EXPECT_EQ(result.stopped, "was interrupted and ended") << program;
    EXPECT_LT(Clock::now() - start, seconds(60)) << program;
  }
  const ProgramResult done = run_program({"sh", "-c", "echo out; exit 3"}, {.cancelled = [] { return false; }});
  EXPECT_EQ(done.stopped, "");
  EXPECT_EQ(done.exit_code, 3);
}

TEST(RunProgram, AFloodIsCutAndEnded) {
  const ProgramResult result =
      run_program({"yes"}, {.kept_output = std::size_t{1} << 16, .max_output = std::size_t{4} << 20});
  EXPECT_TRUE(mentions(result.stopped, "wrote more than")) << result.stopped;
  EXPECT_TRUE(mentions(result.output, "bytes more of its output cut]"));
  EXPECT_LT(result.output.size(), std::size_t{1} << 17);
}

TEST(RunProgram, ADescendantThatKeepsTheOutputOpenDoesNotKeepUs) {
  const auto start = Clock::now();
  const ProgramResult result = run_program({"sh", "-c", "setsid sleep 1000 & echo $!; exit 0"}, {.seconds = 600});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(is_gone_soon(std::atoi(result.output.c_str())));
  EXPECT_LT(Clock::now() - start, seconds(120));
}

}  // namespace
}  // namespace flashcore
