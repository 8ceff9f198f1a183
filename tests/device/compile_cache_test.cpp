#include "device/cuda/compile_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "core/hash.h"
#include "temporary_folder.h"

namespace flashcore::cuda {
namespace {

namespace fs = std::filesystem;

Artifact artifact_of(std::size_t bytes) {
  Artifact artifact;
  artifact.cubin = std::string(bytes, 'x');
  artifact.symbol = "kernel";
  return artifact;
}

// Keys that share a folder.
std::string key_of(int i) { return "ab" + hash128(std::to_string(i)); }

TEST(CompileCache, GivesBackWhatItWasGiven) {
  const test::TemporaryFolder folder;
  const CompileCache cache(folder.path());
  EXPECT_FALSE(cache.find(key_of(1)));
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  const auto found = cache.find(key_of(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cubin, std::string(100, 'x'));
  EXPECT_TRUE(found->from_cache);
}

TEST(CompileCache, AFileThatIsNotWholeIsNoEntry) {
  const test::TemporaryFolder folder;
  const CompileCache cache(folder.path());
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  fs::resize_file(cache.path_of(key_of(1)), fs::file_size(cache.path_of(key_of(1))) - 1);
  EXPECT_FALSE(cache.find(key_of(1)));
}

// --- whose entry it is: what is found here is run
// ------------------------------------------------------------------------

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

TEST(CompileCache, WhatItMakesIsTheUsersAlone) {
  const test::TemporaryFolder folder;
  const mode_t before = umask(0);
  const CompileCache cache(folder.path() / "not/there/yet");
  EXPECT_EQ(cache.why_unused(), "");
  EXPECT_TRUE(cache.store(key_of(1), artifact_of(100)));
  umask(before);
  EXPECT_EQ(mode_of(folder.path() / "not"), 0700u);
  EXPECT_EQ(mode_of(cache.path_of(key_of(1)).parent_path()), 0700u);
  EXPECT_EQ(mode_of(cache.path_of(key_of(1))), 0600u);
  EXPECT_TRUE(cache.find(key_of(1)));
}

TEST(CompileCache, AFolderThatOthersMayWriteToIsNeitherReadNorWritten) {
  const test::TemporaryFolder folder;
  fs::create_directories(folder.path() / "parent");
  const CompileCache cache(folder.path() / "parent/kernels");
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  for (const fs::path& open : {folder.path() / "parent", folder.path() / "parent/kernels"}) {
    chmod(open.c_str(), 0777);
    EXPECT_FALSE(cache.find(key_of(1))) << open;
    EXPECT_FALSE(cache.store(key_of(2), artifact_of(100))) << open;
    EXPECT_FALSE(fs::exists(cache.path_of(key_of(2))));
    EXPECT_NE(cache.why_unused().find("everybody may write to " + fs::canonical(open).string()), std::string::npos);
    EXPECT_NE(cache.why_unused().find("chmod go-w"), std::string::npos) << "it says what to do";
    chmod(open.c_str(), 0700);
    EXPECT_TRUE(cache.find(key_of(1)));
  }
  // A folder of keys, or an entry alone.
  for (const fs::path& open : {cache.path_of(key_of(1)).parent_path(), cache.path_of(key_of(1))}) {
    const mode_t before = mode_of(open);
    chmod(open.c_str(), 0777);
    EXPECT_FALSE(cache.find(key_of(1))) << open;
    chmod(open.c_str(), before);
    EXPECT_TRUE(cache.find(key_of(1))) << open;
  }
}

TEST(CompileCache, AnotherUsersFolderOrEntryIsNone) {
  const test::TemporaryFolder folder;
  if (chown(folder.path().c_str(), 65534, 0) != 0 || chown(folder.path().c_str(), 0, 0) != 0)
    GTEST_SKIP() << "only root can give files away, and to users it has";
  const CompileCache cache(folder.path() / "kernels");
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  for (fs::path path = cache.path_of(key_of(1)); path != folder.path(); path = path.parent_path()) {
    ASSERT_EQ(chown(path.c_str(), 65534, 0), 0);
    EXPECT_FALSE(cache.find(key_of(1))) << path;
    ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
    EXPECT_TRUE(cache.find(key_of(1))) << path;
  }
  // Another's entry is replaced by ours.
  ASSERT_EQ(chown(cache.path_of(key_of(1)).c_str(), 65534, 0), 0);
  EXPECT_TRUE(cache.store(key_of(1), artifact_of(200)));
  const auto found = cache.find(key_of(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cubin.size(), 200u);
  ASSERT_EQ(chown((folder.path() / "kernels").c_str(), 65534, 0), 0);
  EXPECT_NE(cache.why_unused().find("belongs to user 65534"), std::string::npos) << cache.why_unused();
  EXPECT_FALSE(cache.store(key_of(1), artifact_of(300)));
}

TEST(CompileCache, NoSymbolicLinkInsideIsFollowed) {
  const test::TemporaryFolder folder, elsewhere;
  const CompileCache cache(folder.path()), other(elsewhere.path());
  ASSERT_TRUE(other.store(key_of(1), artifact_of(100)));
  // An entry that leads elsewhere is none, and what it leads to survives the store that replaces it.
  ASSERT_TRUE(cache.store(key_of(2), artifact_of(100)));
  fs::create_symlink(other.path_of(key_of(1)), cache.path_of(key_of(1)));
  EXPECT_FALSE(cache.find(key_of(1)));
  EXPECT_TRUE(cache.store(key_of(1), artifact_of(200)));
  EXPECT_FALSE(fs::is_symlink(cache.path_of(key_of(1))));
  EXPECT_EQ(cache.find(key_of(1)).value().cubin.size(), 200u);
  EXPECT_EQ(other.find(key_of(1)).value().cubin.size(), 100u);
  // Nor a folder of keys.
  fs::remove_all(cache.path_of(key_of(1)).parent_path());
  fs::create_directory_symlink(other.path_of(key_of(1)).parent_path(), cache.path_of(key_of(1)).parent_path());
  EXPECT_FALSE(cache.find(key_of(1)));
  EXPECT_FALSE(cache.store(key_of(3), artifact_of(100)));
  EXPECT_FALSE(fs::exists(other.path_of(key_of(3))));
}

TEST(CompileCache, AFifoInPlaceOfAnEntryDoesNotHang) {
  const test::TemporaryFolder folder;
  const CompileCache cache(folder.path());
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  fs::remove(cache.path_of(key_of(1)));
  ASSERT_EQ(mkfifo(cache.path_of(key_of(1)).c_str(), 0600), 0);
  EXPECT_FALSE(cache.find(key_of(1)));
  EXPECT_TRUE(cache.store(key_of(1), artifact_of(100)));
  EXPECT_TRUE(cache.find(key_of(1)));
}

TEST(CompileCache, AnEntryUnderAnotherNameIsNone) {
  const test::TemporaryFolder folder;
  const CompileCache cache(folder.path());
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  fs::copy_file(cache.path_of(key_of(1)), cache.path_of(key_of(2)));
  EXPECT_FALSE(cache.find(key_of(2)));
  EXPECT_TRUE(cache.store(key_of(2), artifact_of(100)));
  EXPECT_TRUE(cache.find(key_of(2)));
}

TEST(CompileCache, AFlippedBitMakesItNoneAndTheNextStoreRemakesIt) {
  const test::TemporaryFolder folder;
  const CompileCache cache(folder.path());
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  const fs::path path = cache.path_of(key_of(1));
  const auto bytes = static_cast<std::streamoff>(fs::file_size(path));
  for (std::streamoff at = 0; at < bytes; at += 37) {
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const char was = static_cast<char>(file.get());
      file.seekp(at);
      file.put(static_cast<char>(was ^ 4));
    }
    EXPECT_FALSE(cache.find(key_of(1))) << "byte " << at;
    ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
    EXPECT_TRUE(cache.find(key_of(1)));
  }
}

TEST(CompileCache, WhatWasNotUsedForLongestGoesFirst) {
  const test::TemporaryFolder folder;
  const CompileCache cache(folder.path(), 256 * 10'000);
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache.store(key_of(i), artifact_of(2000)));
    fs::last_write_time(cache.path_of(key_of(i)), now - std::chrono::hours(10 - i));
  }
  ASSERT_TRUE(cache.find(key_of(0)));  // used: no longer the oldest
  ASSERT_TRUE(cache.store(key_of(4), artifact_of(4000)));
  EXPECT_TRUE(cache.find(key_of(0)));
  EXPECT_FALSE(cache.find(key_of(1)));
  EXPECT_FALSE(cache.find(key_of(2)));
  EXPECT_TRUE(cache.find(key_of(4)));
}

TEST(CompileCache, WhatWasJustWrittenStaysHoweverLargeItIs) {
  const test::TemporaryFolder folder;
  const CompileCache cache(folder.path(), 256 * 100);
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(5000)));
  EXPECT_TRUE(cache.find(key_of(1)));
}

}  // namespace
}  // namespace flashcore::cuda
