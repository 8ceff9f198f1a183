#include "core/scratch_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "core/error.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

class ScratchFolderTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TMPDIR", home_.path().c_str(), 1); }
  void TearDown() override { unsetenv("TMPDIR"); }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(home_.path())) all.insert(entry.path().filename());
    return all;
  }

  test::TemporaryFolder home_;
};

TEST_F(ScratchFolderTest, IsGoneWithTheObject) {
  {
    const ScratchFolder folder;
    EXPECT_EQ(folder.path().parent_path(), home_.path());
    std::ofstream(folder.path() / "file") << "x";
    EXPECT_EQ(names().size(), 1u);
  }
  EXPECT_EQ(names().size(), 0u);
}

TEST_F(ScratchFolderTest, WhatIsWrittenIsThereAndWhatCannotBeIsSaid) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.write("some/folder/file", std::string_view("a\0b", 3));
  EXPECT_EQ(file, folder.path() / "some/folder/file");
  EXPECT_EQ(std::filesystem::file_size(file), 3u);
  folder.write("some/folder/file", "c");
  EXPECT_EQ(std::filesystem::file_size(file), 1u);
  try {
    folder.write("some", "a folder's name");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kEnvironment);
    EXPECT_NE(std::string_view(error.what()).find("Is a directory"), std::string_view::npos) << error.what();
  }
}

TEST_F(ScratchFolderTest, WhatAKilledProcessLeftIsRemovedAndNothingElse) {
  const pid_t child = fork();
  if (child == 0) {
    const ScratchFolder folder;
    std::ofstream(folder.path() / "file") << "x";
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  ASSERT_EQ(names().size(), 1u);
  const ScratchFolder ours;
  std::filesystem::create_directory(home_ / "flashcore-experiment-1");
  std::filesystem::create_directory_symlink("/etc", home_ / "flashcore-scratch-link00");
  remove_left_scratch_folders();
  EXPECT_EQ(names(),
            (std::set<std::string>{ours.path().filename(), "flashcore-experiment-1", "flashcore-scratch-link00"}));
}

TEST_F(ScratchFolderTest, SaysWhereNoneCanBeMade) {
  setenv("TMPDIR", "/no/such/folder", 1);
  try {
    const ScratchFolder folder;
    FAIL() << folder.path();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("set TMPDIR"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashcore
