#include "core/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

int files_in(const std::filesystem::path& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

ErrorKind kind_of(const std::function<void()>& body, const std::string& fragment) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos) << error.what();
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

TEST(FilesTest, WritesReadsAndReplaces) {
  const test::TemporaryFolder folder;
  const std::string bytes("a\0b\n", 4);
  write_file_atomically(folder / "f", bytes);
  EXPECT_EQ(read_file(folder / "f"), bytes);
  write_file_atomically(folder / "f", "");
  EXPECT_EQ(read_file(folder / "f"), "");
  const std::string large(3'000'000, 'x');
  write_file_atomically(folder / "f", large);
  EXPECT_EQ(read_file(folder / "f"), large);
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(FilesTest, ReplacingKeepsPermissionsAndLinks) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "f", "old");
  ASSERT_EQ(chmod((folder / "f").c_str(), 0640), 0);
  std::filesystem::create_symlink("f", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_EQ(read_file(folder / "f"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(static_cast<int>(std::filesystem::status(folder / "f").permissions()), 0640);
}

// In containers everybody is process 1 or 7: a run that was killed left a name that a later one wanted.
TEST(FilesTest, WhatAnEarlierRunLeftBehindIsNotInTheWay) {
  const test::TemporaryFolder folder;
  for (int serial = 0; serial < 200; ++serial)
    std::ofstream(folder / ("f." + std::to_string(getpid()) + "." + std::to_string(serial) + ".tmp")) << "stale";
  write_file_atomically(folder / "f", "new");
  EXPECT_EQ(read_file(folder / "f"), "new");
}

TEST(FilesTest, AKillWhileWritingLeavesNoTemporary) {
  const test::TemporaryFolder folder;
  const int probe = open(folder.path().c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (probe < 0) GTEST_SKIP() << "this file system has no files without a name (O_TMPFILE)";
  close(probe);
  write_file_atomically(folder / "f", "old");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The write that passes the limit kills, as kill -9 in the middle of a large file would.
    const rlimit limit{1 << 20, 1 << 20}, no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    std::signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(10);
    write_file_atomically(folder / "f", std::string(8 << 20, 'x'));
    _exit(11);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(folder / "f"), "old");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(FilesTest, TheLongestNameCanBeWritten) {
  const test::TemporaryFolder folder;
  const std::string name(255, 'n');
  write_file_atomically(folder / name, "x");
  EXPECT_EQ(read_file(folder / name), "x");
  EXPECT_TRUE(why_not_writable(folder / std::string(256, 'n')));
}

TEST(FilesTest, TheModeIsThatOfTheOldFileWhateverTheUmask) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "f", "old");
  ASSERT_EQ(chmod((folder / "f").c_str(), 0666), 0);
  const mode_t before = umask(077);
  write_file_atomically(folder / "f", "new");
  write_file_atomically(folder / "g", "new");
  umask(before);
  EXPECT_EQ(static_cast<int>(std::filesystem::status(folder / "f").permissions()), 0666);
  EXPECT_EQ(static_cast<int>(std::filesystem::status(folder / "g").permissions()), 0600);
}

TEST(FilesTest, WhetherAFileCanBeWrittenIsTried) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(why_not_writable(folder / "f"));
  EXPECT_EQ(files_in(folder.path()), 0) << "nothing is left of the trial";
  EXPECT_NE(why_not_writable(folder.path()).value_or("").find("is a folder"), std::string::npos);
  EXPECT_NE(why_not_writable(folder / "absent/f").value_or("").find("does not exist"), std::string::npos);
  EXPECT_NE(why_not_writable("/proc/f").value_or("").find("cannot write in /proc"), std::string::npos);
  EXPECT_NE(why_not_writable("/dev/full").value_or("").find("not a regular file"), std::string::npos);
}

TEST(FilesTest, ALockIsOneProcessesAtATime) {
  const test::TemporaryFolder folder;
  constexpr int kChildren = 4, kEach = 50;
  write_file_atomically(folder / "count", "0");
  std::vector<pid_t> children;
  for (int i = 0; i < kChildren; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int n = 0; n < kEach; ++n) {
      const FileLock lock(folder / "lock");
      write_file_atomically(folder / "count", std::to_string(std::stoi(read_file(folder / "count")) + 1));
    }
    _exit(0);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  EXPECT_EQ(read_file(folder / "count"), std::to_string(kChildren * kEach));
}

TEST(FilesTest, ReadsFilesWithoutASize) { EXPECT_NE(read_file("/proc/self/status").find("Pid:"), std::string::npos); }

TEST(FilesTest, ReadErrorsNameThePathAndTheReason) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(kind_of([&] { read_file(folder / "absent"); }, "absent: No such file"), ErrorKind::kBadInput);
  EXPECT_EQ(kind_of([&] { read_file(folder.path()); }, "it is a directory"), ErrorKind::kBadInput);
}

TEST(FilesTest, WriteErrorsAreTheEnvironments) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(kind_of([&] { write_file_atomically(folder / "absent/f", "x"); }, "No such file"), ErrorKind::kEnvironment);
  EXPECT_EQ(kind_of([&] { write_file_atomically(folder.path(), "x"); }, "not a regular file"), ErrorKind::kEnvironment);
  EXPECT_EQ(kind_of([&] { write_file_atomically("/dev/full", "x"); }, "not a regular file"), ErrorKind::kEnvironment);
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(kind_of([&] { write_file_atomically(folder / "file/f", "x"); }, "Not a directory"),
            ErrorKind::kEnvironment);
}

// A write that fails half way, as on a full disk: the limit on file size makes write() stop in the same place, and
// needs no privilege. In a child process, because the limit stays.
TEST(FilesTest, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "f", "old");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(10);
    try {
      write_file_atomically(folder / "f", std::string(100'000, 'x'));
    } catch (const Error& error) {
      const bool clear = error.kind() == ErrorKind::kEnvironment &&
                         std::string(error.what()).find("File too large") != std::string::npos;
      _exit(clear ? 0 : 11);
    }
    _exit(12);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_file(folder / "f"), "old");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(FilesTest, AFullDiskLeavesTheOldFileAndNoTemporary) {
  const test::TemporaryFolder folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP()
        << "mounting a small tmpfs needs root with CAP_SYS_ADMIN; the size-limit test above covers the same path";
  }
  write_file_atomically(folder / "f", "old");
  EXPECT_EQ(kind_of([&] { write_file_atomically(folder / "f", std::string(1 << 20, 'x')); },
                    "No space left on device; free some space"),
            ErrorKind::kEnvironment);
  EXPECT_EQ(read_file(folder / "f"), "old");
  EXPECT_EQ(files_in(folder.path()), 1);
  EXPECT_EQ(umount(folder.path().c_str()), 0);
}

TEST(FilesTest, ConcurrentWritersLeaveOneWholeFile) {
  const test::TemporaryFolder folder;
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&folder, i] {
      for (int n = 0; n < 20; ++n) write_file_atomically(folder / "f", std::string(10'000, static_cast<char>('a' + i)));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string bytes = read_file(folder / "f");
  EXPECT_EQ(bytes, std::string(10'000, bytes.at(0)));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(FilesTest, CacheDirectoryFollowsTheEnvironment) {
  const auto keep = [](const char* name) {
    return std::getenv(name) == nullptr ? std::string() : std::string(std::getenv(name));
  };
  const std::string own = keep("FLASHCORE_CACHE"), xdg = keep("XDG_CACHE_HOME"), home = keep("HOME");
  setenv("FLASHCORE_CACHE", "/own", 1);
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(cache_directory(), "/own");
  unsetenv("FLASHCORE_CACHE");
  EXPECT_EQ(cache_directory(), "/xdg/flashcore");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(cache_directory(), "/home/someone/.cache/flashcore");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_THROW(cache_directory(), Error);
  if (!own.empty()) setenv("FLASHCORE_CACHE", own.c_str(), 1);
  if (!xdg.empty()) setenv("XDG_CACHE_HOME", xdg.c_str(), 1);
  setenv("HOME", home.c_str(), 1);
}

// Under an alarm: what opens or reads without end must not hold up the tests.
void expect_refused_at_once(const std::filesystem::path& path, const std::string& fragment) {
  ::alarm(60);
  EXPECT_EQ(kind_of([&] { read_file(path, 1 << 20); }, fragment), ErrorKind::kBadInput) << path;
  ::alarm(0);
}

TEST(FilesTest, PipesDevicesAndWhatNeverEndsAreRefused) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_refused_at_once(folder / "fifo", "pipe");
  expect_refused_at_once("/dev/zero", "device");
  std::filesystem::create_symlink("/dev/zero", folder / "link");
  expect_refused_at_once(folder / "link", "device");
  std::filesystem::create_symlink("loop", folder / "loop");
  expect_refused_at_once(folder / "loop", "cannot read");
  expect_refused_at_once(folder.path(), "directory");
  expect_refused_at_once(folder / std::string(300, 'x'), "cannot read");
  // A file that claims a terabyte and takes none.
  std::ofstream(folder / "sparse").put('x');
  std::filesystem::resize_file(folder / "sparse", std::uintmax_t{1} << 40);
  expect_refused_at_once(folder / "sparse", "more than 1048576 bytes");
}

TEST(FilesTest, WhatTheShellHandsOverIsReadUpToTheLimit) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "through a pipe", 14), 14);
  close(ends[1]);
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), "through a pipe");
  close(ends[0]);
  const int zero = open("/dev/zero", O_RDONLY);
  expect_refused_at_once("/dev/fd/" + std::to_string(zero), "more than 1048576 bytes");
  close(zero);
}

}  // namespace
}  // namespace flashcore
