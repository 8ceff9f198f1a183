#include "device/cuda/dynamic_library.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "device/compiler.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/microkernels.h"
#include "temporary_folder.h"

namespace flashcore::cuda {
namespace {

using flashcore::test::TemporaryFolder;

class NvrtcSearch : public ::testing::Test {
 protected:
  NvrtcSearch() {
    places_.executable = folder_.path() / "checkout/build/flashcore";
    places_.environment = [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    };
    places_.prefixes = {folder_.path() / "usr/local"};
  }
  std::string put(const std::string& path) {
    const std::filesystem::path file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "library";
    return file.string();
  }
  // Position in the search, or -1.
  std::ptrdiff_t place_of(const std::string& file) const {
    const auto candidates = nvrtc_candidates(places_);
    const auto found = std::find(candidates.begin(), candidates.end(), file);
    return found == candidates.end() ? -1 : found - candidates.begin();
  }

  TemporaryFolder folder_;
  SearchPlaces places_;
  std::map<std::string, std::string> variables_;
};

TEST_F(NvrtcSearch, FindsTheWheelsAboveTheExecutable) {
  const std::string wheel13 = put("checkout/.venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  const std::string wheel12 =
      put("checkout/.venv-other/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  EXPECT_GE(place_of(wheel13), 0);
  EXPECT_GE(place_of(wheel12), 0);
  EXPECT_LT(place_of(wheel13), place_of("libnvrtc.so.13")) << "what quickstart installed comes before the system's";
}

TEST_F(NvrtcSearch, FindsTheActiveEnvironmentAndToolkits) {
  variables_["VIRTUAL_ENV"] = (folder_.path() / "elsewhere").string();
  EXPECT_GE(place_of(put("elsewhere/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13")), 0);
  EXPECT_GE(place_of(put("usr/local/cuda-12.6/lib64/libnvrtc.so.12")), 0);
  EXPECT_GE(place_of(put("usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so.13")), 0);
  EXPECT_GE(place_of(put("usr/local/lib/python3.11/dist-packages/nvidia/cu13/lib/libnvrtc.so.13")), 0);
  EXPECT_GE(place_of(put("usr/local/app/.venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13")), 0);
}

TEST_F(NvrtcSearch, TheVariableExcludesEverythingElse) {
  put("checkout/.venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  const std::string chosen = put("mine/libnvrtc.so.12");
  variables_["FLASHCORE_NVRTC"] = chosen;
  EXPECT_EQ(nvrtc_candidates(places_), std::vector<std::string>{chosen});
  variables_["FLASHCORE_NVRTC"] = (folder_.path() / "mine").string();
  EXPECT_EQ(nvrtc_candidates(places_), std::vector<std::string>{chosen});
}

TEST_F(NvrtcSearch, WhatOthersCouldHavePutThereIsPassedOverAndNamed) {
  const std::string above = put(".venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  EXPECT_GE(place_of(above), 0);
  chmod((folder_.path() / ".venv/lib").c_str(), 0777);
  std::vector<PassedOver> passed_over;
  const auto candidates = nvrtc_candidates(places_, &passed_over);
  EXPECT_EQ(std::count(candidates.begin(), candidates.end(), above), 0);
  ASSERT_EQ(passed_over.size(), 1u);
  EXPECT_EQ(passed_over[0].path, above);
  EXPECT_NE(passed_over[0].why.find("everybody may write to"), std::string::npos) << passed_over[0].why;
  // Whoever names it has looked.
  variables_["FLASHCORE_NVRTC"] = above;
  EXPECT_EQ(place_of(above), 0);
}

TEST_F(NvrtcSearch, AnotherUsersEnvironmentIsPassedOverWhereverItLies) {
  if (chown(folder_.path().c_str(), 65534, 0) != 0 || chown(folder_.path().c_str(), 0, 0) != 0)
    GTEST_SKIP() << "only root can give files away, and to users it has";
  variables_["VIRTUAL_ENV"] = (folder_.path() / "active").string();
  const std::string library = "lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13";
  for (const char* place : {"checkout/.venv/", ".venv-old/", "active/", "usr/local/", "usr/local/app/.venv/"}) {
    const std::string file = put(place + library);
    ASSERT_GE(place_of(file), 0) << file;
    // The folder that the attacker made: above the file, which may well be root's own.
    const std::filesystem::path theirs = folder_.path() / place / "lib";
    ASSERT_EQ(chown(theirs.c_str(), 65534, 0), 0);
    EXPECT_EQ(place_of(file), -1) << file;
    ASSERT_EQ(chown(theirs.c_str(), 0, 0), 0);
  }
  const std::string toolkit = put("usr/local/cuda-13.0/lib64/libnvrtc.so.13");
  ASSERT_EQ(chown(toolkit.c_str(), 65534, 0), 0);
  EXPECT_EQ(place_of(toolkit), -1);
}

TEST_F(NvrtcSearch, ALinkIsOpenedByWhatItLedToWhenItWasLookedAt) {
  const std::string real = put("opt/libnvrtc.so.12.6");
  const std::filesystem::path link = folder_.path() / "usr/local/cuda/lib64/libnvrtc.so.12";
  std::filesystem::create_directories(link.parent_path());
  std::filesystem::create_symlink(real, link);
  EXPECT_EQ(place_of(link.string()), -1);
  EXPECT_GE(place_of(std::filesystem::canonical(real).string()), 0);
}

TEST(DynamicLibrary, SaysWhatWasTried) {
  std::string why;
  EXPECT_FALSE(DynamicLibrary::open_first({"libflashcore-absent.so.1", "/absent/libflashcore.so"}, &why));
  EXPECT_NE(why.find("libflashcore-absent.so.1"), std::string::npos) << why;
  EXPECT_NE(why.find("/absent/libflashcore.so"), std::string::npos) << why;
}

TEST(DynamicLibrary, OpensTheFirstThatLoads) {
  const auto library = DynamicLibrary::open_first({"libflashcore-absent.so.1", "libc.so.6"}, nullptr);
  ASSERT_TRUE(library);
  EXPECT_NE(library->path().find("libc.so.6"), std::string::npos);
  EXPECT_NE(library->symbol("malloc"), nullptr);
  EXPECT_EQ(library->symbol("flashcore_absent"), nullptr);
}

TEST(DynamicLibrary, BuiltinsComeFromBesideTheCompiler) {
  std::string why;
  const NvrtcApi* api = nvrtc_api(&why);
  if (!api) GTEST_SKIP() << "no NVRTC on this machine: " << why;
  if (api->path.find('/') == std::string::npos) GTEST_SKIP() << "the loader does not tell where it found NVRTC";
  const std::filesystem::path folder = std::filesystem::path(api->path).parent_path();
  open_compiler()->compile(microkernel_source(Microkernel::kEmpty), microkernel_sources(), "sm_80", false);
  int found = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const std::size_t at = line.find('/');
        at != std::string::npos && line.find("libnvrtc-builtins") != std::string::npos) {
      EXPECT_TRUE(std::filesystem::equivalent(std::filesystem::path(line.substr(at)).parent_path(), folder)) << line;
      ++found;
    }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace flashcore::cuda
