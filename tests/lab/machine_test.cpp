#include "lab/record/machine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <vector>

namespace flashcore {
namespace {

constexpr const char* kStat =
    "cpu  4000 10 600 90000 700 10 40 0 0 0\n"
    "cpu0 1000 5 300 45000 300 10 20 7 900 0\n"
    "cpu1 3000 5 300 45000 400 0 20 0 0 0\n"
    "intr 12345 6\n";

TEST(Machine, BusySecondsAreThoseOfTheCpusAskedFor) {
  // Of cpu0: user, nice, system, irq, softirq and what a hypervisor took; not idle, not waiting for disks, guests once.
  EXPECT_DOUBLE_EQ(busy_seconds(kStat, {0}, 100).value(), (1000 + 5 + 300 + 10 + 20 + 7) / 100.0);
  EXPECT_DOUBLE_EQ(busy_seconds(kStat, {0, 1}, 100).value(), (1342 + 3325) / 100.0);
  EXPECT_FALSE(busy_seconds(kStat, {0, 2}, 100)) << "a CPU that the text does not name";
  EXPECT_FALSE(busy_seconds("", {0}, 100));
  EXPECT_FALSE(busy_seconds(kStat, {}, 100));
}

// A process that uses its CPU for so long, says so, and waits to be killed.
struct Spinner {
  // An orphan is no child of ours: another program.
  Spinner(double seconds, bool orphan) {
    EXPECT_EQ(pipe(pipe_), 0);
    const pid_t child = fork();
    EXPECT_GE(child, 0);
    if (child == 0) {
      if (orphan && fork() != 0) _exit(0);
      alarm(60);  // should the test die before it ends us
      pid = getpid();
      std::ignore = write(pipe_[1], &pid, sizeof pid);
      while (static_cast<double>(clock()) / CLOCKS_PER_SEC < seconds) continue;
      std::ignore = write(pipe_[1], "x", 1);
      for (;;) pause();
    }
    is_child_ = !orphan;
    if (orphan) waitpid(child, nullptr, 0);
    EXPECT_EQ(read(pipe_[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  }
  ~Spinner() {
    end();
    close(pipe_[0]);
    close(pipe_[1]);
  }
  void wait_until_done() {
    char done;
    EXPECT_EQ(read(pipe_[0], &done, 1), 1);
  }
  void end() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    if (is_child_) waitpid(pid, nullptr, 0);
    pid = 0;
  }
  pid_t pid = 0;

 private:
  int pipe_[2];
  bool is_child_ = false;
};

TEST(Machine, DescendantsAreFoundByTheirParents) {
  const std::vector<std::string> lines = {
      "10 (flash core) S 1 10 10 0 -1 0 0 0 0 0 700 70 7 7 20 0",  // itself
      "11 (a) b) R 10 10 10 0 -1 0 0 0 0 0 100 20 3 4 20 0",       // its child, whose name is a riddle
      "12 (c) R 11 10 10 0 -1 0 0 0 0 0 1000 0 0 0 20 0",          // and grandchild
      "13 (d) R 1 10 10 0 -1 0 0 0 0 0 5000 0 0 0 20 0",           // another's
      "20 (e) R 21 1 1 0 -1 0 0 0 0 0 5000 0 0 0 20 0",            // a circle
      "21 (f) R 20 1 1 0 -1 0 0 0 0 0 5000 0 0 0 20 0",           "14 (g) R 10", "",
  };
  EXPECT_DOUBLE_EQ(descendant_seconds(lines, 10, 100), (100 + 20 + 3 + 4 + 1000) / 100.0);
  EXPECT_EQ(descendant_seconds({}, 10, 100), 0);
}

TEST(Machine, WhatItsChildrenDoIsItsOwnWork) {
  const double before = own_seconds();
  Spinner peer(0.3, false);
  peer.wait_until_done();
  EXPECT_GT(own_seconds() - before, 0.25) << "the kernel counts in hundredths of a second";
  peer.end();
  EXPECT_GT(own_seconds() - before, 0.25) << "and after it has ended";
}

TEST(Machine, AnotherProgramsWorkIsNoticedAndSaid) {
  Spinner other(1e9, true);
  const LoadMeter meter;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  MachineReading reading;
  meter.read(reading);
  other.end();
  // However busy the machine is: what the other does not get, others have.
  EXPECT_GT(reading.others_busy, 0.5);
  EXPECT_GE(reading.load_after, 0);
  EXPECT_NE(busy_words({MachineReading{}, reading}).find("the machine was busy: other programs kept up to"),
            std::string::npos);
  EXPECT_NE(load_words({reading}).find("other programs kept up to"), std::string::npos);
  EXPECT_EQ(nlohmann::json(reading).get<MachineReading>().others_busy, reading.others_busy);
}

TEST(Machine, AQuietMachineIsNotCalledBusyAndOldReadingsAreRead) {
  MachineReading quiet;
  quiet.load_before = quiet.load_after = 1.0;
  quiet.others_busy = 0.9 * kBusyCores;
  EXPECT_EQ(busy_words({quiet}), "");
  EXPECT_EQ(busy_words({}), "");
  nlohmann::json old = quiet;
  old.erase("others_busy");
  EXPECT_LT(old.get<MachineReading>().others_busy, 0);
  EXPECT_EQ(busy_words({old.get<MachineReading>()}), "") << "not known";
}

}  // namespace
}  // namespace flashcore
