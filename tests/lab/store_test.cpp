#include "lab/record/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "lab/record/store_error.h"
#include "lab/sample_trial.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

class StoreTest : public ::testing::Test {
 protected:
  fs::path file(const std::string& name = "trials.db") const { return folder_ / name; }

  // Runs `body` in a forked child and returns its wait status.
  template <class Body>
  static pid_t fork_child(Body body) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 0;
      try {
        body();
      } catch (...) {
        code = 9;
      }
      _exit(code);
    }
    return child;
  }
  static int wait_for(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }

  const test::TemporaryFolder own_folder_;
  const fs::path folder_ = own_folder_.path();
};

Trial trial_of(const std::string& run, Phase phase = Phase::kSearch) {
  Trial trial = test::sample_trial();
  trial.run = run;
  trial.phase = phase;
  return trial;
}

// The message of the Error that `body` throws; fails if it throws none or one of another kind.
template <class Body>
std::string message_of(ErrorKind kind, Body body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool mentions(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

TEST_F(StoreTest, WhatIsAppendedIsFoundAgain) {
  std::int64_t first = 0;
  {
    Store store(file("deep/er/trials.db"));
    first = store.append(trial_of("a"));
    EXPECT_GT(store.append(trial_of("b", Phase::kHoldout)), first);
  }
  const Store store(file("deep/er/trials.db"));
  const auto all = store.query({});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, first);
  EXPECT_EQ(all[0].run, "a");
  EXPECT_EQ(all[1].artifact->code_hash, "feed");
}

TEST_F(StoreTest, EveryFilterFilters) {
  Store store(file());
  store.append(trial_of("a"));
  Trial other = trial_of("b", Phase::kBench);
  other.family = "cpu_fwd";
  other.device.key = "cpu_x";
  other.problem.batch = 3;
  store.append(other);
  const auto runs = [&](const TrialQuery& query) {
    std::string found;
    for (const Trial& t : store.query(query)) found += t.run;
    return found;
  };
  EXPECT_EQ(runs({}), "ab");
  EXPECT_EQ(runs({.run = "b"}), "b");
  EXPECT_EQ(runs({.problem_id = other.problem.id()}), "b");
  EXPECT_EQ(runs({.device_key = "h200"}), "a");
  EXPECT_EQ(runs({.family = "cpu_fwd"}), "b");
  EXPECT_EQ(runs({.phase = Phase::kBench}), "b");
  EXPECT_EQ(runs({.device_key = "h200", .phase = Phase::kBench}), "");
}

TEST_F(StoreTest, TextIsBoundNeverPastedIntoSql) {
  Store store(file());
  store.append(trial_of("x'); DROP TABLE trials; --"));
  EXPECT_EQ(store.query({.run = "x'); DROP TABLE trials; --"}).size(), 1u);
}

TEST_F(StoreTest, UnwritablePathSaysWhatToDo) {
  std::ofstream(file("plain")) << "x";
  EXPECT_TRUE(
      mentions(message_of(ErrorKind::kEnvironment, [&] { Store store(file("plain") / "trials.db"); }), "--store"));
  EXPECT_TRUE(mentions(message_of(ErrorKind::kEnvironment, [&] { Store store("/proc/flashcore/trials.db"); }),
                       "/proc/flashcore"));
  EXPECT_TRUE(mentions(message_of(ErrorKind::kBadInput, [&] { Store store{folder_}; }), "is a folder"));
}

TEST_F(StoreTest, AFileThatIsNoDatabaseIsRefusedAndLeftAlone) {
  const std::string text(4096, 'x');
  std::ofstream(file()) << text;
  EXPECT_TRUE(mentions(message_of(ErrorKind::kBadInput, [&] { Store store(file()); }), "not a flashcore store"));
  EXPECT_EQ(read_file(file()), text);
}

TEST_F(StoreTest, AnotherProgramsDatabaseIsRefusedAndLeftAlone) {
  SQLite::Database(file(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE).exec("CREATE TABLE theirs (x)");
  const std::string before = read_file(file());
  EXPECT_TRUE(mentions(message_of(ErrorKind::kBadInput, [&] { Store store(file()); }), "not a flashcore store"));
  EXPECT_EQ(read_file(file()), before);
}

TEST_F(StoreTest, AStoreFromANewerVersionIsRefused) {
  { Store store(file()); }
  SQLite::Database(file(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 99");
  const std::string message = message_of(ErrorKind::kBadInput, [&] { Store store(file()); });
  EXPECT_TRUE(mentions(message, "99") && mentions(message, "newer"));
}

TEST_F(StoreTest, ADamagedTrialIsNamedAsSuch) {
  Store store(file());
  store.append(trial_of("a"));
  SQLite::Database(file(), SQLite::OPEN_READWRITE).exec("UPDATE trials SET json = substr(json, 1, 40)");
  EXPECT_TRUE(mentions(message_of(ErrorKind::kBadInput, [&] { store.query({}); }), "damaged trial, 1"));
}

TEST_F(StoreTest, DamagedTrialsArePassedOverAndNamed) {
  Store store(file());
  for (const char* run : {"a", "b", "c", "d", "e"}) store.append(trial_of(run));
  SQLite::Database raw(file(), SQLite::OPEN_READWRITE);
  raw.exec("UPDATE trials SET json = substr(json, 1, 40) WHERE run = 'a'");
  raw.exec("UPDATE trials SET json = '[]' WHERE run = 'c'");
  raw.exec("UPDATE trials SET json = x'ff00fe' WHERE run = 'd'");
  raw.exec("UPDATE trials SET json = json_set(json, '$.problem', 'b0_nonsense') WHERE run = 'e'");
  std::vector<std::string> damaged;
  const auto trials = store.query({}, &damaged);
  ASSERT_EQ(trials.size(), 1u);
  EXPECT_EQ(trials[0].run, "b");
  ASSERT_EQ(damaged.size(), 4u);
  EXPECT_TRUE(mentions(damaged[0], "trial 1 ") && mentions(damaged[1], "trial 3 ")) << damaged[0] << damaged[1];
}

TEST_F(StoreTest, ReadingCreatesAndChangesNothing) {
  EXPECT_TRUE(
      mentions(message_of(ErrorKind::kEnvironment, [&] { Store store(file(), Store::Access::kRead); }), "open"));
  EXPECT_FALSE(fs::exists(file()));
  { Store(file()).append(trial_of("a")); }
  const std::string before = read_file(file());
  EXPECT_EQ(Store(file(), Store::Access::kRead).query({}).size(), 1u);
  EXPECT_EQ(read_file(file()), before);
  std::ofstream(file("blank"));
  EXPECT_TRUE(Store(file("blank"), Store::Access::kRead).query({}).empty());
  std::ofstream(file("text")) << std::string(4096, 'x');
  EXPECT_TRUE(mentions(message_of(ErrorKind::kBadInput, [&] { Store store(file("text"), Store::Access::kRead); }),
                       "not a flashcore store"));
}

// A store on a read-only mount, or another user's. What is still in the -wal file counts too.
TEST_F(StoreTest, AReadOnlyFolderCanBeRead) {
  Store writer(file());
  writer.append(trial_of("a"));
  fs::create_directories(folder_ / "copy");
  for (const char* part : {"", "-wal"})
    fs::copy_file(file().string() + part, (folder_ / "copy" / "trials.db").string() + part);
  ASSERT_GT(fs::file_size((folder_ / "copy" / "trials.db-wal")), 0u);
  for (const auto& entry : fs::directory_iterator(folder_ / "copy")) chmod(entry.path().c_str(), 0444);
  chmod((folder_ / "copy").c_str(), 0555);
  chmod(folder_.c_str(), 0755);
  const pid_t child = fork_child([&] {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(3);  // to root nothing is read-only
    try {
      if (Store(folder_ / "copy" / "trials.db", Store::Access::kRead).query({}).size() != 1) _exit(2);
    } catch (const std::exception& e) {
      fprintf(stderr, "%s\n", e.what());
      _exit(1);
    }
  });
  EXPECT_EQ(wait_for(child), 0);
  chmod((folder_ / "copy").c_str(), 0755);
  int left = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_ / "copy")) ++left;
  EXPECT_EQ(left, 2);
}

TEST_F(StoreTest, AFullDiskIsNamedAndWhatWasStoredStands) {
  const std::string message = message_of(ErrorKind::kEnvironment, [&] {
    throw_store_error(file(), "write to", SQLite::Exception("database or disk is full", SQLITE_FULL));
  });
  EXPECT_TRUE(mentions(message, "disk is full"));

  { Store store(file()); }
  // A file size limit stands in for the full disk: writes fail in the middle of a transaction.
  const pid_t child = fork_child([&] {
    Store store(file());
    store.append(trial_of("before"));
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{96 * 1024, 96 * 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
    Trial large = trial_of("large");
    large.message = std::string(1 << 20, 'm');
    try {
      store.append(large);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kEnvironment || !mentions(e.what(), "disk full")) _exit(1);
      // Whoever has measured goes on: the first fault is kept, and nothing is tried after it.
      if (!store.fault().empty() || store.append_or_note(large) != 0 || !mentions(store.fault(), "disk full")) _exit(2);
      _exit(store.append_or_note(trial_of("later")) == 0 ? 0 : 3);
    }
    _exit(4);
  });
  EXPECT_EQ(wait_for(child), 0);
  Store store(file());
  ASSERT_EQ(store.query({}).size(), 1u);
  EXPECT_EQ(store.query({})[0].run, "before");
  store.append(trial_of("after"));
}

TEST_F(StoreTest, TwoProcessesCreateAndWriteAtOnce) {
  constexpr int kWriters = 4, kEach = 25;
  std::vector<pid_t> children;
  for (int writer = 0; writer < kWriters; ++writer)
    children.push_back(fork_child([&] {
      Store store(file());
      for (int i = 0; i < kEach; ++i) store.append(trial_of(std::to_string(writer)));
    }));
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  const Store store(file());
  for (int writer = 0; writer < kWriters; ++writer)
    EXPECT_EQ(store.query({.run = std::to_string(writer)}).size(), static_cast<std::size_t>(kEach));
}

TEST_F(StoreTest, KillLosesNothingThatWasCommitted) {
  for (int round = 0; round < 3; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork_child([&] {
      Store store(file());
      for (;;) {
        const std::int64_t id = store.append(trial_of("killed"));
        if (write(pipe_ends[1], &id, sizeof id) != sizeof id) return;
      }
    });
    close(pipe_ends[1]);
    // An id on the pipe is a promise kept; the child dies in the middle of whatever comes after the twentieth.
    std::int64_t last = 0;
    for (int i = 0; i < 20; ++i) ASSERT_EQ(read(pipe_ends[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
    kill(child, SIGKILL);
    while (read(pipe_ends[0], &last, sizeof last) == static_cast<ssize_t>(sizeof last)) {
    }
    close(pipe_ends[0]);
    EXPECT_TRUE(WIFSIGNALED(wait_for(child)));
    const Store store(file());
    const auto trials = store.query({});
    ASSERT_FALSE(trials.empty());
    EXPECT_GE(trials.back().id, last);
    EXPECT_LE(trials.back().id, last + 1) << "at most the one in flight was committed without being reported";
  }
  SQLite::Database raw(file(), SQLite::OPEN_READWRITE);
  EXPECT_EQ(raw.execAndGet("PRAGMA integrity_check").getString(), "ok");
}

TEST_F(StoreTest, WritesAreInWalMode) {
  Store store(file());
  SQLite::Database raw(file(), SQLite::OPEN_READONLY);
  EXPECT_EQ(raw.execAndGet("PRAGMA journal_mode").getString(), "wal");
}

}  // namespace
}  // namespace flashcore
