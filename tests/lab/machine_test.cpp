#include "lab/record/machine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

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

TEST(Machine, AnotherProgramsWorkIsNoticedAndSaid) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (std::atomic<unsigned> spin{0};;) ++spin;
  }
  const LoadMeter meter;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  MachineReading reading;
  meter.read(reading);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  // However busy the machine is: what the child does not get, others have.
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
