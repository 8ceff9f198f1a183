// Hostile kernels, handed to the executor past the check of sources: what the sandbox itself holds.

#include "device/emulator/foreign_module.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "device/emulator/executor_channel.h"
#include "device/emulator_fixture.h"
#include "device/sandbox/sandbox.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

using emulator::ForeignLimits;
using emulator::ForeignModule;

// Declarations of the host, as a hostile kernel would make them.
constexpr const char* kHost = R"(
extern "C" {
int system(const char*); int open(const char*, int, ...); long read(int, void*, unsigned long);
long write(int, const void*, unsigned long); int socket(int, int, int); int kill(int, int); int getppid();
int getpid(); long ptrace(int, ...); int fork(); unsigned sleep(unsigned); void* malloc(unsigned long);
int pthread_create(unsigned long*, const void*, void* (*)(void*), void*); long syscall(long, ...);
int* __errno_location(); void _exit(int); int execve(const char*, char* const*, char* const*); void* memset(void*, int, unsigned long);
int unlink(const char*); int mkdir(const char*, unsigned); int raise(int);
}
)";

class ForeignModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sandbox::means() == sandbox::Means::kNone) GTEST_SKIP() << "this machine lets no sandbox be made";
    emulator::use_executor_program(FLASHCORE_EXECUTOR_HELPER);
  }

  Artifact compile(const std::string& outside, const std::string& body) {
    static const std::unique_ptr<Compiler> compiler = open_emulator_compiler();
    SourceMap sources = sources_of("");
    std::string& text = sources["test/kernel.cuh"];
    text = text.substr(0, text.find("using namespace flashcore;"));
    text += fmt::format(
        "{}{}\nusing namespace flashcore;\nstruct Params {{ ptx::TensorMap map; float* data; int n; }};\n"
        "FC_KERNEL(32, 1) kernel(const __grid_constant__ Params p) {{ const int t = ptx::tid_x(); (void)t; "
        "(void)p;\n{}\n}}\n",
        kHost, outside, body);
    KernelSource kernel{"test/kernel.cuh", "kernel", 1024, 32, {}};
    kernel.foreign = true;
    return compiler->compile(kernel, sources, "sm_90", false);
  }

  // What the launch's end says, "" if it ended well. The buffer holds 256 times 1 before.
  std::string run(const std::string& outside, const std::string& body, const ForeignLimits& limits = {}) {
    const ForeignModule module(compile(outside, body), limits);
    return launch(module);
  }

  std::string launch(const ForeignModule& module) {
    if (!buffer_) {
      buffer_ = memory_.allocate(1024, 4096);
      std::fill_n(reinterpret_cast<float*>(buffer_->data()), 256, 1.0f);
    }
    const Params params{{}, reinterpret_cast<float*>(buffer_->data()), 256};
    LaunchSpec spec;
    spec.block.x = 32;
    spec.shared_bytes = 1024;
    spec.params.resize(sizeof params);
    std::memcpy(spec.params.data(), &params, sizeof params);
    try {
      counters_ = module.launch(spec, memory_, number_++, 1);
    } catch (const DeviceFault& fault) {
      return fault.what();
    }
    return "";
  }
  float at(int i) const { return reinterpret_cast<const float*>(buffer_->data())[i]; }

  // A call that the sandbox must end: the launch fails and says so.
  void expect_ended(const std::string& outside, const std::string& body, const std::string& word) {
    const std::string report = run(outside, body);
    EXPECT_NE(report.find(word), std::string::npos) << report;
  }

  static std::string store(const std::string& value) {
    return "if (t == 0) ptx::st_global_f32(p.data, float(" + value + "));";
  }
  // Calls at load, and what they gave goes into the buffer.
  float result_at_load(const std::string& expression) {
    const std::string report = run("static long result = (" + expression + ");", store("result"));
    EXPECT_EQ(report, "");
    return at(0);
  }

  emulator::GlobalMemory memory_;
  std::shared_ptr<emulator::Allocation> buffer_;
  emulator::Counters counters_;
  std::uint32_t number_ = 0;
};

TEST_F(ForeignModuleTest, WhatAKernelWritesComesBack) {
  const std::string body = "ptx::st_global_f32(p.data + t, 2 * ptx::ld_global_f32(p.data + t));";
  EXPECT_EQ(run("", body), "");
  EXPECT_EQ(at(0), 2);
  EXPECT_EQ(at(31), 2);
  EXPECT_EQ(at(32), 1);
  EXPECT_EQ(counters_.ctas, 1u);
  EXPECT_EQ(counters_.sites.size(), 2u);
  EXPECT_TRUE(buffer_->red_zones_intact());
}

TEST_F(ForeignModuleTest, AModuleIsLaunchedAgainAndAgain) {
  const ForeignModule module(compile("", "ptx::st_global_f32(p.data + t, 2 * ptx::ld_global_f32(p.data + t));"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(launch(module), "");
  EXPECT_EQ(at(0), 8);
}

TEST_F(ForeignModuleTest, AFaultNamesItsLine) {
  const std::string report = run("", "ptx::st_global_f32(p.data + 256 + t, 1.0f);");
  EXPECT_NE(report.find("out of bounds"), std::string::npos) << report;
  EXPECT_NE(report.find("kernels/test/kernel.cuh:"), std::string::npos) << report;
}

TEST_F(ForeignModuleTest, AConstructorStartsNoProgram) {
  const test::TemporaryFolder folder;
  const std::string file = (folder.path() / "owned").string();
  expect_ended(fmt::format("struct S {{ S() {{ system(\"touch {}\"); }} }} s;", file), "", "SIGSYS");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(ForeignModuleTest, AnAttributeOfAFunctionStartsNoProgram) {
  expect_ended(
      "__attribute__((constructor)) static void go() { char* none[] = {nullptr}; execve(\"/bin/sh\", none, none); }",
      "", "SIGSYS");
}

TEST_F(ForeignModuleTest, TheFilesOfTheMachineAreNotThere) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "secret") << "42";
  for (const std::string& file : {(folder.path() / "secret").string(), std::string("/etc/passwd"),
                                  std::string("/proc/self/environ"), std::string(FLASHCORE_EXECUTOR_HELPER)})
    EXPECT_EQ(result_at_load("open(\"" + file + "\", 0)"), -1) << file;
}

TEST_F(ForeignModuleTest, NothingIsOpenedForWriting) {
  const test::TemporaryFolder folder;
  const std::string file = (folder.path() / "written").string();
  expect_ended("static int fd = open(\"" + file + "\", 0101, 0666);", "", "SIGSYS");
  EXPECT_FALSE(std::filesystem::exists(file));
  expect_ended("static int gone = unlink(\"/kernel.so\");", "", "SIGSYS");
  expect_ended("static int made = mkdir(\"/x\", 0777);", "", "SIGSYS");
}

TEST_F(ForeignModuleTest, NoSocketNoProcessNoTracing) {
  for (const char* call : {"socket(2, 1, 0)", "socket(1, 1, 0)", "fork()", "ptrace(16, getppid(), 0, 0)",
                           "kill(getppid(), 9)", "kill(-1, 9)"})
    expect_ended(std::string("static long result = ") + call + ";", "", "SIGSYS");
}

TEST_F(ForeignModuleTest, ABombOfProcessesEndsAtTheFirst) {
  expect_ended("struct S { S() { for (;;) fork(); } } s;", "", "SIGSYS");
}

TEST_F(ForeignModuleTest, AnEndlessLoopHasADeadline) {
  ForeignLimits limits;
  limits.seconds = 2;
  const std::string report = run("", "volatile int x = 0; while (x == 0) {}", limits);
  EXPECT_NE(report.find("no answer after 2 s"), std::string::npos) << report;
}

TEST_F(ForeignModuleTest, LoadingHasADeadlineOfItsOwn) {
  ForeignLimits limits;
  limits.load_seconds = 2;
  const std::string report = run("struct S { S() { volatile int x = 0; while (x == 0) {} } } s;", "", limits);
  EXPECT_NE(report.find("not loaded after 2 s"), std::string::npos) << report;
}

TEST_F(ForeignModuleTest, ABombOfMemoryIsEnded) {
  ForeignLimits limits;
  limits.memory_bytes = 256 << 20;
  limits.seconds = 60;
  const std::string report = run("", "if (t == 0) for (;;) memset(malloc(1 << 20), 1, 1 << 20);", limits);
  EXPECT_NE(report.find("MB of memory"), std::string::npos) << report;
}

TEST_F(ForeignModuleTest, ABombOfThreadsIsEnded) {
  ForeignLimits limits;
  limits.threads = 64;
  limits.seconds = 60;
  const std::string report =
      run("static void* idle(void*) { for (;;) sleep(100); }",
          "unsigned long id; if (t == 0) for (;;) pthread_create(&id, nullptr, idle, nullptr);", limits);
  EXPECT_NE(report.find("threads"), std::string::npos) << report;
}

// Descriptor 3 is the channel itself: a forged answer is data, and one too many is refused.
TEST_F(ForeignModuleTest, WordsThatNobodyAskedForEndTheLaunch) {
  const std::string flood = "for (int fd = 0; fd < 64; ++fd) write(fd, \"{\\\"trial\\\":{}}\\n\", 13);";
  EXPECT_NE(run("struct S { S() { " + flood + " } } s;", ""), "");
  const std::string report = run("", "if (t == 0) { " + flood + " }");
  EXPECT_NE(report.find("given up"), std::string::npos) << report;
}

// kDone with counters of its own making, and buffers, before the launch has written a thing. They are taken as the
// kernel's: the judge's checks say what they hold.
TEST_F(ForeignModuleTest, AForgedAnswerForgesNoMoreThanBuffers) {
  emulator::Counters forged;
  forged.ctas = 7;
  const std::string payload = emulator::pack(forged, [](const void*) { return std::uint64_t{0}; });
  std::string bytes;
  for (const char c : payload) bytes += fmt::format("{},", static_cast<int>(c));
  const std::string forge = fmt::format(R"(
struct Header {{ unsigned kind, number; unsigned long size; }};
static void forge() {{
  static const signed char counters[] = {{{}}};
  const Header header{{{}, 1, sizeof counters}}; write(3, &header, sizeof header); write(3, counters, sizeof counters);
  static char buffer[1024 + 2 * 4096]; write(3, buffer, sizeof buffer); _exit(0);
}})",
                                        bytes, static_cast<unsigned>(emulator::MessageKind::kDone));
  const std::string report = run(forge, "if (t == 0) forge();");
  ASSERT_EQ(report, "");
  EXPECT_EQ(counters_.ctas, 7u);
  EXPECT_EQ(at(0), 0) << "what was forged is what the judge sees";
  EXPECT_FALSE(buffer_->red_zones_intact());
}

TEST_F(ForeignModuleTest, AThreadThatStaysBehindChangesNothing) {
  const std::string late = R"(
static float* target;
static void* write_late(void*) { for (;;) target[5] = 77; }
)";
  const ForeignModule module(compile(
      late, "unsigned long id; if (t == 0) { target = p.data; pthread_create(&id, nullptr, write_late, nullptr); }"));
  EXPECT_EQ(launch(module), "");
  const float before = at(5);
  // It is stopped, so it does not even burn a core; a signal takes a moment.
  const auto status = [&] {
    std::ifstream file(fmt::format("/proc/{}/stat", module.executor_pid()));
    return std::string((std::istreambuf_iterator<char>(file)), {});
  };
  for (int i = 0; i < 1000 && status().find(") T ") == std::string::npos; ++i) usleep(10000);
  EXPECT_NE(status().find(") T "), std::string::npos) << status();
  EXPECT_EQ(at(5), before);
}

TEST_F(ForeignModuleTest, BuffersOfOthersAreNotSent) {
  const auto secret = memory_.allocate(1024, 4096);
  std::fill_n(reinterpret_cast<float*>(secret->data()), 256, 42.0f);
  const std::string report =
      run("", fmt::format("if (t == 0) ptx::st_global_f32(p.data, ptx::ld_global_f32((float*){:#x}ul));",
                          reinterpret_cast<std::uintptr_t>(secret->data())));
  EXPECT_NE(report.find("out of bounds"), std::string::npos) << report;
  // Nor is the memory there, for who does not ask the emulator.
  const std::string direct = run("", fmt::format("if (t == 0) p.data[0] = *(volatile float*){:#x}ul;",
                                                 reinterpret_cast<std::uintptr_t>(secret->data())));
  EXPECT_NE(direct.find("SIGSEGV"), std::string::npos) << direct;
}

TEST_F(ForeignModuleTest, AnExecutorThatCrashesIsAFault) {
  EXPECT_NE(run("", "*(volatile int*)8 = 1;").find("SIGSEGV"), std::string::npos);
  EXPECT_NE(run("static int code = (_exit(0), 1);", "").find("exited with code 0"), std::string::npos);
}

TEST_F(ForeignModuleTest, TheAssemblerReadsNoFileOfTheUsers) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "secret") << "42";
  for (const std::string& file : {(folder.path() / "secret").string(), std::string("/etc/passwd")}) {
    const test::TemporaryFolder work;
    std::ofstream(work.path() / "x.cpp") << "asm(\".section .rodata; .incbin \\\"" + file + "\\\"; .text\");\n";
    const auto result = sandbox::run_tool({"c++", "-c", "x.cpp"}, work.path().string(), 60);
    EXPECT_TRUE(result.started && result.exit_code != 0) << file;
    EXPECT_FALSE(std::filesystem::exists(work.path() / "x.o")) << file;
    try {
      compile("#include \"" + file + "\"", "");
      ADD_FAILURE() << file;
    } catch (const CompileError& e) {
      EXPECT_EQ(e.log().find("root:"), std::string::npos) << e.log();
      EXPECT_TRUE(e.log().find("No such file") != std::string::npos ||
                  e.log().find("Permission denied") != std::string::npos)
          << e.log();
    }
  }
}

TEST_F(ForeignModuleTest, TheHostsAssemblyIsNotAKernels) { EXPECT_THROW(compile("asm(\"nop\");", ""), CompileError); }

TEST_F(ForeignModuleTest, AToolWritesOnlyItsOwnFolder) {
  const test::TemporaryFolder folder, other;
  std::ofstream(other.path() / "secret") << "a secret";
  const auto result = sandbox::run_tool({"sh", "-c",
                                         "echo in > inside; echo out > " + (other.path() / "outside").string() +
                                             "; cat /etc/passwd " + (other.path() / "secret").string()},
                                        folder.path().string(), 30);
  EXPECT_TRUE(result.started);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "inside"));
  EXPECT_FALSE(std::filesystem::exists(other.path() / "outside")) << result.output;
  EXPECT_EQ(result.output.find("a secret"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("root:"), std::string::npos) << result.output;
}

TEST_F(ForeignModuleTest, AToolThatHangsIsEnded) {
  const test::TemporaryFolder folder;
  const auto result = sandbox::run_tool({"sleep", "1000"}, folder.path().string(), 0.3);
  EXPECT_NE(result.stopped.find("still running"), std::string::npos);
}

TEST_F(ForeignModuleTest, AToolThatFloodsIsEnded) {
  const test::TemporaryFolder folder;
  const auto result = sandbox::run_tool({"yes"}, folder.path().string(), 600);
  EXPECT_NE(result.stopped.find("wrote more than"), std::string::npos) << result.stopped;
  EXPECT_LT(result.output.size(), std::size_t{2} << 20);
}

}  // namespace
}  // namespace flashcore
