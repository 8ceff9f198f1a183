// What is said of a confined proposer, for each version of Landlock, is what its process meets.

#include "lab/process/confined.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "core/files.h"
#include "device/sandbox/confine.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

using test::TemporaryFolder;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(Confinement, ClaimsWhatTheVersionOfLandlockHolds) {
  const ConfinementReport none = describe_confinement("/w", 0);
  EXPECT_FALSE(contains(none.confined, "other processes")) << none.confined;
  EXPECT_FALSE(contains(none.confined, "writing in")) << none.confined;
  EXPECT_TRUE(contains(none.left_open, "writing files, looking into your other processes")) << none.left_open;
  const ConfinementReport first = describe_confinement("/w", 1);
  EXPECT_TRUE(contains(first.confined, "no look into other processes, writing in /w alone")) << first.confined;
  EXPECT_TRUE(contains(first.left_open, "emptying files")) << first.left_open;
  const ConfinementReport all = describe_confinement("/w", 3);
  EXPECT_TRUE(contains(all.confined, "no look into other processes, writing in /w alone")) << all.confined;
  EXPECT_FALSE(contains(all.left_open, "emptying")) << all.left_open;
}

// In a child of its own, for there is no way back.
int restricted(int version, const std::string& work, const std::string& outside) {
  const pid_t pid = fork();
  if (pid == 0) {
    const sandbox::ReadableFolder everything{"/", ""};
    const std::string environ = "/proc/" + std::to_string(getppid()) + "/environ";
    if (sandbox::restrict_paths(&everything, 1, work.c_str(), version)) _exit(10);
    if (sandbox::drop_privileges()) _exit(10);  // whoever may measure performance may read much of any process
    if (open((work + "/own").c_str(), O_WRONLY | O_CREAT, 0600) < 0) _exit(11);
    if (open(outside.c_str(), O_WRONLY) >= 0) _exit(12);
    if (open(environ.c_str(), O_RDONLY) >= 0) _exit(13);
    const bool emptied = open(outside.c_str(), O_RDONLY | O_TRUNC) >= 0;
    _exit(emptied ? 1 : 0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Confinement, EarlierVersionsOfLandlockHoldWhatIsSaid) {
  const int version = sandbox::landlock_version();
  if (version == 0) GTEST_SKIP() << "no Landlock here";
  const TemporaryFolder work, other;
  const std::string outside = (other.path() / "file").string();
  write_file_atomically(outside, "kept");
  for (int asked = 1; asked <= std::min(version, sandbox::kLandlockForTruncation); ++asked)
    EXPECT_EQ(restricted(asked, work.path().string(), outside), asked < sandbox::kLandlockForTruncation ? 1 : 0)
        << "Landlock as of version " << asked;
}

}  // namespace
}  // namespace flashcore
