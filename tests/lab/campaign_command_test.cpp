// The commands of a campaign as child processes.
#include "lab/campaign/command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "core/files.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

CommandEnd shell(const std::filesystem::path& log, const std::string& text, double seconds = 20,
                 const std::function<bool()>& stop = {}) {
  return run_command({"/bin/sh", "-c", text}, {}, log, seconds, stop);
}

TEST(RunCommand, EndsAreToldApart) {
  const test::TemporaryFolder folder;
  const auto log = folder.path() / "log";
  EXPECT_EQ(shell(log, "echo hello; echo oops >&2; exit 4").exit_code, 4);
  EXPECT_EQ(read_file(log), "hello\noops\n");
  EXPECT_EQ(run_command({"/bin/sh", "-c", "exit $CODE"}, {{"CODE", "5"}}, log, 20, {}).exit_code, 5);
  EXPECT_EQ(shell(log, "echo one >&2; echo two >&2; exit 3").said, "two");
  // A warning is no verdict, and says something only where nothing else does.
  EXPECT_EQ(shell(log, "echo INCONCLUSIVE x; echo '  warning: others were busy'; exit 2").said, "INCONCLUSIVE x");
  EXPECT_EQ(shell(log, "echo SLOWER; echo 'flashcore: warning: passed over' >&2; exit 1").said, "SLOWER");
  EXPECT_EQ(shell(log, "echo 'warning: busy'; exit 2").said, "warning: busy");
  EXPECT_EQ(shell(log, "exit 2").said, "");
  EXPECT_EQ(shell(log, "kill -SEGV $$").exit_code, -1);
  EXPECT_NE(shell(log, "kill -SEGV $$").how.find("SIGSEGV"), std::string::npos);
  const CommandEnd late = shell(log, "sleep 60", 0.3);
  EXPECT_NE(late.how.find("still running"), std::string::npos);
  EXPECT_NE(late.how.find("ended by the campaign"), std::string::npos);
  EXPECT_TRUE(late.out_of_time);
  EXPECT_FALSE(shell(log, "exit 2").out_of_time);
  EXPECT_TRUE(shell(log, "sleep 60", 20, [] { return true; }).cancelled);
  // A child that saves what it has may do so; one that does not is killed.
  const auto once_ready = [&] { return std::filesystem::exists(folder.path() / "ready"); };
  const std::string ready = "; touch " + (folder.path() / "ready").string() + "; sleep 60";
  const CommandEnd saved = shell(log, "trap 'echo saved; exit 2' INT" + ready, 20, once_ready);
  EXPECT_TRUE(saved.cancelled);
  EXPECT_EQ(saved.exit_code, 2);
  EXPECT_EQ(read_file(log), "saved\n");
  std::filesystem::remove(folder.path() / "ready");
  const CommandEnd deaf = shell(log, "trap '' INT" + ready, 20, once_ready);
  EXPECT_TRUE(deaf.cancelled);
  EXPECT_NE(deaf.how.find("was killed"), std::string::npos) << deaf.how;
  // Out of time, too.
  shell(log, "trap 'echo saved; exit 2' INT; sleep 60", 1);
  EXPECT_EQ(read_file(log), "saved\n");
  const CommandEnd none = run_command({"no-such-program"}, {}, log, 5, {});
  EXPECT_NE(none.how.find("not on PATH"), std::string::npos);
  EXPECT_TRUE(none.no_program);
}

// A verdict may lack its newline, and may come behind more than a log keeps.
TEST(RunCommand, TheLastWordsAreKept) {
  const test::TemporaryFolder folder;
  const auto log = folder.path() / "log";
  EXPECT_EQ(shell(log, "echo first; printf 'SLOWER than before'; exit 1").said, "SLOWER than before");
  EXPECT_EQ(read_file(log), "first\nSLOWER than before\n");
  const CommandEnd chatty = shell(log, "echo begin; seq -f %099.0f 60000; echo 'FASTER at last'", 60);
  EXPECT_EQ(chatty.said, "FASTER at last");
  const std::string kept = read_file(log);
  EXPECT_LT(kept.size(), (std::size_t{4} << 20) + 100);
  EXPECT_TRUE(kept.starts_with("begin\n0000"));
  EXPECT_TRUE(kept.ends_with("00060000\nFASTER at last\n"));
  // "begin", the lines of 100 bytes and the verdict, less the two ends of 2 MiB.
  const std::size_t cut = 6 + 6'000'000 + 15 - (std::size_t{4} << 20);
  EXPECT_NE(kept.find("\n[" + std::to_string(cut) + " bytes cut]\n"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
