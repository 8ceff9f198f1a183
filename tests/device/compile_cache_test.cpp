#include "device/cuda/compile_cache.h"

#include <gtest/gtest.h>

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
  const testing::TemporaryFolder folder;
  const CompileCache cache(folder.path());
  EXPECT_FALSE(cache.find(key_of(1)));
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  const auto found = cache.find(key_of(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cubin, std::string(100, 'x'));
  EXPECT_TRUE(found->from_cache);
}

TEST(CompileCache, AFileThatIsNotWholeIsNoEntry) {
  const testing::TemporaryFolder folder;
  const CompileCache cache(folder.path());
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(100)));
  fs::resize_file(cache.path_of(key_of(1)), fs::file_size(cache.path_of(key_of(1))) - 1);
  EXPECT_FALSE(cache.find(key_of(1)));
}

TEST(CompileCache, WhatWasNotUsedForLongestGoesFirst) {
  const testing::TemporaryFolder folder;
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
  const testing::TemporaryFolder folder;
  const CompileCache cache(folder.path(), 256 * 100);
  ASSERT_TRUE(cache.store(key_of(1), artifact_of(5000)));
  EXPECT_TRUE(cache.find(key_of(1)));
}

}  // namespace
}  // namespace flashcore::cuda
