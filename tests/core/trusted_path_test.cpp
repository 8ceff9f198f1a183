#include "core/trusted_path.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "temporary_folder.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kSomebody = 65534;

class TrustedPath : public ::testing::Test {
 protected:
  TrustedPath() {
    fs::create_directories(folder_.path() / "a/b");
    std::ofstream(file_) << "code";
    chmod(file_.c_str(), 0644);
    for (const char* name : {"a", "a/b"}) chmod((folder_.path() / name).c_str(), 0755);
  }
  const test::TemporaryFolder folder_;
  const fs::path file_ = folder_.path() / "a/b/file";
};

TEST_F(TrustedPath, WhatOnlyTheUserCanWriteIsTrusted) {
  EXPECT_EQ(why_untrusted(file_), "");  // though /tmp itself is everybody's, and sticky
  EXPECT_EQ(why_untrusted(fs::path("/usr/bin/env")), "");
}

TEST_F(TrustedPath, AFolderOnTheWayThatEverybodyMayWriteToIsNamed) {
  chmod((folder_.path() / "a").c_str(), 0777);
  const std::string why = why_untrusted(file_);
  EXPECT_NE(why.find("everybody may write to"), std::string::npos) << why;
  EXPECT_NE(why.find((folder_.path() / "a").string() + " (mode 0777)"), std::string::npos) << why;
  chmod((folder_.path() / "a").c_str(), 01777);
  EXPECT_EQ(why_untrusted(file_), "");
  chmod(file_.c_str(), 0666);
  EXPECT_NE(why_untrusted(file_).find("file (mode 0666)"), std::string::npos);
}

TEST_F(TrustedPath, AnotherUsersFileOrFolderIsNot) {
  if (chown(file_.c_str(), kSomebody, 0) != 0) GTEST_SKIP() << "only root can give files away, and to users it has";
  EXPECT_NE(why_untrusted(file_).find("belongs to user 65534"), std::string::npos) << why_untrusted(file_);
  ASSERT_EQ(chown(file_.c_str(), 0, 0), 0);
  EXPECT_EQ(why_untrusted(file_), "");
  ASSERT_EQ(chown((folder_.path() / "a").c_str(), kSomebody, 0), 0);
  EXPECT_NE(why_untrusted(file_).find("/a belongs to user 65534"), std::string::npos) << why_untrusted(file_);
}

TEST_F(TrustedPath, AGroupOfOthersMayNotWrite) {
  if (geteuid() != 0 || chown(file_.c_str(), 0, 54321) != 0 || chown(file_.c_str(), 0, 0) != 0)
    GTEST_SKIP() << "only root can give files to any group";
  chmod(file_.c_str(), 0664);
  EXPECT_EQ(why_untrusted(file_), "");         // root's own group
  ASSERT_EQ(chown(file_.c_str(), 0, 100), 0);  // "users"
  EXPECT_NE(why_untrusted(file_).find("may write to"), std::string::npos) << why_untrusted(file_);
  ASSERT_EQ(chown(file_.c_str(), 0, 54321), 0);  // a group without a name
  EXPECT_NE(why_untrusted(file_).find("group 54321 may write to"), std::string::npos) << why_untrusted(file_);
}

TEST_F(TrustedPath, ALinkIsJudgedByWhatItLeadsTo) {
  const test::TemporaryFolder elsewhere;
  fs::create_symlink(file_, elsewhere.path() / "link");
  EXPECT_EQ(why_untrusted(elsewhere.path() / "link"), "");
  chmod((folder_.path() / "a/b").c_str(), 0777);
  EXPECT_NE(why_untrusted(elsewhere.path() / "link"), "");
}

TEST_F(TrustedPath, WhatIsNotThereIsNotTrusted) {
  EXPECT_NE(why_untrusted(folder_.path() / "absent").find("cannot be looked at"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
