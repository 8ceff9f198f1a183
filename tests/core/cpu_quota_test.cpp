#include "core/cpu_quota.h"

#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

class CpuQuota : public ::testing::Test {
 protected:
  void write(const char* path, const char* text) {
    fs::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << text;
  }
  std::optional<double> quota() { return cpu_quota(folder_.path()); }
  test::TemporaryFolder folder_;
};

TEST_F(CpuQuota, NoneWhereNothingLimits) {
  EXPECT_EQ(quota(), std::nullopt);
  write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, OfAContainerWithItsOwnRoot) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CpuQuota, TheLeastOfTheGroupAndThoseAroundIt) {
  write("proc/self/cgroup", "0::/pods/one/two\n");
  write("sys/fs/cgroup/pods/cpu.max", "200000 100000\n");
  write("sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/pods/one/two/cpu.max", "800000 100000\n");
  EXPECT_EQ(quota(), 2.0);
}

// A container may see its group's path on the host, of which only the end is mounted, as the root.
TEST_F(CpuQuota, OfAPathThatIsNotThere) {
  write("proc/self/cgroup", "0::/kubepods/x/y\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CpuQuota, OfVersionOne) {
  write("proc/self/cgroup", "5:memory:/a\n3:cpu,cpuacct:/a\n1:cpuset:/\n");
  write("sys/fs/cgroup/memory/a/cpu.max", "1 100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(quota(), 3.0);
}

TEST_F(CpuQuota, NonsenseIsNoLimit) {
  write("proc/self/cgroup", "nonsense\n0::/\n");
  write("sys/fs/cgroup/cpu.max", "much 0\n");
  EXPECT_EQ(quota(), std::nullopt);
}

}  // namespace
}  // namespace flashcore
