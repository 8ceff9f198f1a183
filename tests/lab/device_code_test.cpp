// What the first wall lets through, and what not.

#include "lab/harness/device_code.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "kernels/embedded.h"
#include "lab/experiment/experiment.h"
#include "lab/harness/patch.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

std::string refusal(const std::string& text, const std::string& path = "sm80_fwd/extra.cuh") {
  return why_not_device_code(path, text, "", device_sources()).value_or("");
}

TEST(DeviceCode, TheLibrarysOwnSourcesPass) {
  for (const auto& [path, text] : device_sources()) {
    const bool device = path.ends_with(".cuh") || path.ends_with("config.h") || path.starts_with("tile/");
    if (!device || path.starts_with("cpu_fwd/")) continue;
    EXPECT_EQ(why_not_device_code(path, text, text, device_sources()), std::nullopt) << path;
  }
}

TEST(DeviceCode, CommittedExperimentsPass) {
  int patches = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FLASHCORE_SOURCE_DIR "/experiments")) {
    if (entry.path().extension() != ".yaml") continue;
    const Experiment experiment = load_experiment(entry.path());
    patches += static_cast<int>(experiment.patches().size());
    for (const Patch& patch : experiment.patches()) EXPECT_FALSE(patch.trusted);
  }
  EXPECT_GE(patches, 5);
}

TEST(DeviceCode, WhatAKernelIsMadeOfPasses) {
  EXPECT_EQ(refusal(R"(#pragma once
#include "kernels/tile/softmax.cuh"
// asm, system() and #include <x> in a comment
namespace flashcore::extra {
using Row = float[4];
constexpr int kRows = 4;
inline constexpr float kTable[] = {1, 2};
enum class Kind { kOne, kTwo };
struct Forward;
class Other;
union Both;
enum class Later;
enum Small : unsigned char;
template <class T>
struct Of;
template <>
struct Of<int> final : Other<int> {
  int x;
};
struct alignas(16) Wide { float values[4]; };
struct { int x; };
inline namespace inner { constexpr int kInner = 1; }
namespace a::b { constexpr int kNested = 1; }
enum class Wide8 : unsigned char { kOne };
enum { kAnonymous };
enum : int { kAnonymousToo };
struct Holder {
  struct Kept { int x; };
  struct Kept kept;
  struct Forward* next;
};
template <int N, class T = float>
struct Tile {
  T values[N] = {};
  static constexpr int kSize = N;
  FC_DEVICE T& operator[](int i) { return values[i]; }
  FC_DEVICE bool operator==(const Tile& other) const { return values[0] == other.values[0]; }
  Tile& operator=(const Tile&) = default;
};
template <bool B>
FC_DEVICE int f(int a, int b = 1) { int c = a; if (c == b) c = 2; auto g = [&](int x) { return x + c; }; return g(1); }
template <class T>
concept Small = sizeof(T) <= 4 && requires(T t) { t.x; } && requires(T t) { t.y; };
template <Small T>
FC_DEVICE int g(T t) { return t.x; }
template struct Of<int>;
template FC_DEVICE int f<true>(int, int);
}
)"),
            "");
}

// A launch computes from its inputs alone, on its own stream.
TEST(DeviceCode, WhatOutlivesTheLaunchIsRefused) {
  const std::pair<const char*, const char*> attacks[] = {
      {"FC_DEVICE int f() { static int calls; return calls++; }", "static variable"},
      {"FC_DEVICE int f() { int static calls = 0; return calls++; }", "static variable"},
      {"FC_DEVICE int f() { static int calls(0); return calls++; }", "static variable"},
      {"FC_DEVICE int f() { static decltype(0) calls{}; return calls++; }", "static variable"},
      {"FC_DEVICE int f() { static unsigned calls[sizeof(int)]{}; return calls[0]++; }", "static variable"},
      {"FC_DEVICE int f() { static alignas(16) int calls{}; return calls++; }", "static variable"},
      {"FC_DEVICE int f() { static int (calls){}; return calls++; }", "static variable"},
      {"struct S { inline static decltype(0) calls{}; };", "static variable"},
      {"constexpr int&& launches = 0;", "reference to a temporary"},
      {"constexpr unsigned (&&kept)[4096] = {};", "reference to a temporary"},
      {"FC_DEVICE int f() { static constexpr int&& calls = 0; return calls++; }", "reference to a temporary"},
      {"FC_DEVICE int f() { static const void* last[64]; return last[0] != nullptr; }", "static variable"},
      {"FC_DEVICE int f() { static struct { int n; } kept; return kept.n++; }", "static variable"},
      {"FC_DEVICE void f() { auto g = [] { static int n{0}; return n++; }; g(); }", "static variable"},
      {"__global__ void k() {}\nFC_DEVICE void f() { k<<<1, 1>>>(); }", "another kernel"},
      {"__global__ void k() {}\nFC_DEVICE void f() { k< < <1, 1>>>(); }", "another kernel"},
      {"FC_DEVICE void f() { cudaDeviceSynchronize(); }", "CUDA run time"},
      {"FC_DEVICE void f(cudaStream_t s) {}", "CUDA run time"},
      {"FC_DEVICE void f() { cuStreamSynchronize(0); }", "CUDA run time"},
      {"FC_DEVICE void f() { asm(\"prefetch.global.L2::evict_last [%0];\" ::\"l\"(0)); }", "beyond the launch"},
      {"FC_DEVICE void f() { asm(\"createpolicy.fractional.L2::evict_first.b64 p, 1.0;\"); }", "beyond the launch"},
      {"FC_DEVICE void f() { asm(\"prefetch.global.L2::evict_\" \"last [%0];\" ::\"l\"(0)); }", "beyond the launch"},
      {"FC_DEVICE void f() { asm(\"create\"\n// and\n\"policy.x;\"); }", "beyond the launch"},
      {"FC_DEVICE void f() { asm volatile(\"ld.global.L2::cache_hint.u32 %0;\"); }", "beyond the launch"},
      {"FC_DEVICE void f() { asm(\"prefetch.global.L2::evict_\\x6cast [%0];\"); }", "escape"},
      {"FC_DEVICE void f() { asm(\"prefetch.global.L2::evict_\\154ast [%0];\"); }", "escape"},
      {"FC_DEVICE void f() { asm(\"evict_\"\n#if 0\n\"x\"\n#endif\n\"last\"); }", "directive"},
      {"FC_DEVICE int f() { static int calls([]() constexpr { return 0; }()); return calls++; }", "static variable"},
      {"FC_DEVICE int f() { static int calls[sizeof([]() constexpr {})]; return calls[0]++; }", "static variable"},
      // In a class a declaration with parentheses is a function only if its name is right before them.
      {"struct S { static int (calls); };", "static variable"},
      {"struct S { static FC_DEVICE S (calls); };", "static variable"},
      {"struct S { static const S (calls); };", "static variable"},
      {"struct S { static unsigned int (calls); };", "static variable"},
      {"struct S { static struct T (calls); };", "static variable"},
      {"struct S { static int (*calls)(int); };", "static variable"},
      {"struct S { static int calls[sizeof(int)]; };", "static variable"},
      {"struct S { static int calls, of(int); };", "static variable"},
      {"struct S { static decltype(f()) calls; };", "static variable"},
      {"struct S { static A<B> (calls); };", "static variable"},
      // What no compiler sees makes no class and no function of it.
      {"FC_DEVICE void f()\n#pragma unroll ; struct S\n{ static T calls(0); }", "static variable"},
      {"FC_DEVICE void f()\n{\n#pragma unroll ; struct S {\nstatic T calls(0);\n#pragma unroll }\n}",
       "static variable"},
      {"FC_DEVICE void f()\n#if 0\n; struct S\n#endif\n{ static T calls(0); }", "constexpr"},
      {"struct S { static inline T calls\n#if 0\n(int)\n#endif\n; };", "static variable"},
      {"FC_DEVICE void f() { static T calls\n#if 0\n()\n#endif\n{}; }", "static variable"},
      {"FC_DEVICE void f() {\n#pragma unroll constexpr\nstatic int calls = 0; }", "static variable"},
      // Elsewhere it may be a variable with its initialiser.
      {"FC_DEVICE void f() { static S of(int()); }", "static variable"},
      {"struct S { FC_DEVICE void f() { static T calls(0); } };", "static variable"},
      {"struct S { int n = [] { static T calls(0); return 1; }(); };", "static variable"},
      {"struct S f() { static T calls(0); }", "static variable"},
      {"FC_DEVICE float f() { static float cache [[constexpr]]; return cache; }", "[["},
      {"struct K { mutable int n = 0; };\nFC_DEVICE int f() { static constexpr K k{}; return k.n++; }", "mutable"},
      {"struct K { mutable int n = 0; };\nconstexpr K kept{};\nFC_DEVICE int f() { return kept.n++; }", "mutable"},
      {"struct K { int mutable n = 0; };\nstruct S { static constexpr K kept{}; };", "mutable"},
      {"FC_DEVICE void f() { ptx::track_places<1>[0] += 1; }", "outlives the launch"},
      {"FC_DEVICE void f() { ptx::Tracks<1>::place(1, 1, 1); }", "outlives the launch"},
  };
  for (const auto& [text, words] : attacks)
    EXPECT_NE(refusal(text).find(words), std::string::npos) << text << refusal(text);
  const char* honest[] = {
      "FC_DEVICE int f() { static constexpr int kOne = 1; constexpr static int kTwo = 2; return kOne + kTwo; }",
      "FC_DEVICE int f() { static __shared__ int shared[4]; return shared[0]; }",
      "struct S { FC_DEVICE static int f(int a = 1) { return a; }\n  template <int N> static FC_DEVICE S of(int i) { "
      "return {}; } };",
      "struct S { static FC_DEVICE S of(int); };\nFC_DEVICE S S::of(int i) { return {}; }",
      "template <class T>\nclass S : B<T> { public: static FC_DEVICE Pair<int, T> of(int a, float b = g(1)) noexcept; "
      "};",
      "struct T {};\n#if 1\nstruct S { static S of(int); };\n#endif\n",
      "struct S { struct T { static S* of(T& t, int); }; static T& at(); };",
      "// static int calls; k<<<1, 1>>>(); cudaMalloc, evict_last",
      "FC_DEVICE int f(int a, int b) { return a << b; }",
      "FC_DEVICE int f(int a) { auto next = [a]() mutable { return a++; }; return next(); }",
      "FC_DEVICE float customized(float cumulative) { return cumulative; }",
  };
  for (const char* text : honest) EXPECT_EQ(refusal(text), "") << text;
}

TEST(DeviceCode, WhatReachesForTheHostIsRefused) {
  const std::pair<const char*, const char*> attacks[] = {
      {"#include \"/etc/passwd\"", "#include"},
      {"#include \"../../../etc/passwd\"", "#include"},
      {"#include \"kernels/../../../../etc/passwd\"", "#include"},
      {"#include <stdlib.h>", "#include"},
      {"#inc\\\nlude \"/etc/passwd\"", "#include"},
      {"#inc\\  \nlude \"/etc/passwd\"", "backslash"},
      // A comment for one compiler is code for another.
      {"// \\ \n#include \"/etc/passwd\"", "backslash"},
      {"// \\\f\n/*\n#include \"/etc/passwd\"\n// */\n", "backslash"},
      {"// \v\n", "control character"},
      {"// a\r#include \"/etc/passwd\"\n", "control character"},
      // What hides a scope from whoever reads all branches.
      {"#if 0\nvoid f() {\n#endif\nstruct S { S(); };\nS s;\n#if 0\n}\n#endif\n", "branch"},
      {"#endif\n", "without an #if"},
      {"#/**/include/**/\"/etc/passwd\"", "#include"},
      {"  #  include \"/etc/passwd\"", "#include"},
      {"%:include \"/etc/passwd\"", "digraph"},
      {"?\?=include \"/etc/passwd\"", "trigraph"},
      {"/\\\n* comment */ #include \"/etc/passwd\"", "#include"},
      {"#include_next \"x\"", "include_next"},
      {"#import \"x\"", "import"},
      {"#embed \"/etc/passwd\"", "embed"},
      {"ex\\\ntern \"C\" int f();", "extern"},
      {"#define X \"/etc/passwd\"\n#include X", "#"},
      {"#if __has_include(\"/etc/passwd\")\n#endif", "__has_include"},
      {"#line 1 \"elsewhere\"", "line"},
      {"#pragma GCC poison x", "pragma"},
      {"#pragma GCC dependency \"/etc/passwd\"", "pragma"},
      {"_Pragma(\"GCC poison x\")", "_Pragma"},
      {"__asm__(\"nop\");", "__asm__"},
      {"extern \"C\" int system(const char*);", "extern"},
      {"int system(const char*);", "system"},
      {"__attribute__((constructor)) void go() {}", "__attribute__"},
      {"[[gnu::constructor]] void go() {}", "gnu"},
      {"void f() { __builtin_abort(); }", "__builtin_abort"},
      {"void f() { std::abort(); }", "std"},
      {"int x = f();", "constexpr"},
      {"static int x = 0;", "constexpr"},
      {"const int x = f();", "constexpr"},
      {"inline int x = f();", "constexpr"},
      {"int x{f()};", "constexpr"},
      {"S s;", "constexpr"},
      {"S s(1);", "constexpr"},
      {"FC_DEVICE float f(int);", "define the function before its first use"},
      {"template <class T> concept C = true; S s;", "constexpr"},
      {"template <class T> concept C = requires(T t) { t.x; }; S s{};", "constexpr"},
      {"template <bool B = 1 < 2> int launches = 0;", "constexpr"},
      {"template <bool B = 1 < 2> __device__ int launches = g();", "constexpr"},
      {"struct S { S() {} };\nstruct S s;", "constexpr"},
      {"struct S { S() {} };\nclass S s;", "constexpr"},
      {"union U { int i; U() {} };\nunion U u;", "constexpr"},
      {"namespace a { struct S { S() {} }; struct S s; }", "constexpr"},
      {"struct S { S() {} };\nstruct S s, t;", "constexpr"},
      {"struct S { S() {} };\nstruct ::S s;", "constexpr"},
      {"enum E { kOne };\nenum E e;", "constexpr"},
      {"template <int N> struct S s;", "constexpr"},
      {"struct S { static struct T t; };", "constexpr"},
      {"template <int N> int x = f();", "constexpr"},
      {"namespace a { namespace { int x = f(); } }", "constexpr"},
      {"struct S { S() {} } s;", "class"},
      {"struct S s{f()};", "constexpr"},
      {"struct S<int> s{f()};", "constexpr"},
      {"struct S __device__ launches{};", "constexpr"},
      {"enum E e{f()};", "constexpr"},
      {"[[constexpr]] __device__ float cache[1024];", "[["},
      {"int x [[namespace]] {f()};", "[["},
      {"int namespace {f()};", "constexpr"},
      {"__device__ int x[sizeof([]() constexpr {})];", "constexpr"},
      {"struct S { static inline int x = f(); };", "constexpr"},
      {"struct S { inline static int x{f()}; };", "constexpr"},
      {"auto x = [] { return 1; }();", "constexpr"},
      {"int x = f([] { constexpr int one = 1; return one; });", "constexpr"},
      {"S s{[] { constexpr int one = 1; return one; }()};", "constexpr"},
      {"constinit S s{};", "constexpr"},
      {"int x = ({ 1; });", "constexpr"},
      {"void f() {} }", "'}'"},
      {"const char* t = R\"(\n#include \"x\"\n)\";", "raw string"},
      {"int \xc3\xa9;", "ASCII"},
      {"int \\u0061sm;", "'\\'"},
      {"#define M(a, b) a##b", "#"},
      {"/* never ends", "comment"},
  };
  for (const auto& [text, word] : attacks) {
    const std::string why = refusal(text);
    EXPECT_NE(why.find(word), std::string::npos) << text << "\n-> " << why;
  }
}

// By its name: what such a variable is for is to skip the work of the next launch.
TEST(DeviceCode, AVariableOfTheDeviceIsStateThatLaunchesKeep) {
  for (const char* text : {"__device__ float cache[1024];", "namespace a { static __device__ int launches; }",
                           "__constant__ float x[4];", "struct S { static __device__ inline int launches{}; };"}) {
    const auto refusal = refuse_device_code("sm80_fwd/extra.cuh", text, "", device_sources());
    ASSERT_TRUE(refusal) << text;
    EXPECT_TRUE(refusal->keeps_state) << text << " -> " << refusal->why;
    EXPECT_NE(refusal->why.find("from launch to launch"), std::string::npos) << refusal->why;
    EXPECT_EQ(refusal->why.find("initialiser"), std::string::npos) << refusal->why;
  }
  const auto host = refuse_device_code("sm80_fwd/extra.cuh", "int x = f();", "", device_sources());
  ASSERT_TRUE(host);
  EXPECT_FALSE(host->keeps_state);

  Patch patch;
  patch.name = "cache", patch.family = "sm80_fwd";
  patch.files = {{"sm80_fwd/extra.cuh", "__device__ float cache[1024];\n"}};
  try {
    const PatchScope scope({patch});
    FAIL() << "it was taken";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find("--trust-code"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("no time of such a kernel is true"), std::string::npos) << e.what();
  }
}

// Nor behind a file of ptx/, which the emulator does not see.
TEST(DeviceCode, InPtxToo) {
  const std::string& memory = device_sources().at("ptx/memory.cuh");
  const auto refused = [](const std::string& path, const std::string& text) {
    return why_not_device_code(path, text, device_sources().at(path), device_sources()).value_or("");
  };
  EXPECT_EQ(refused("ptx/memory.cuh",
                    memory + "// a remark\nnamespace flashcore::ptx {\nFC_DEVICE int f() { return 1; }\n}\n"),
            "");
  EXPECT_NE(refused("ptx/memory.cuh", memory + "__device__ unsigned launches;\n").find("constexpr"), std::string::npos);
  EXPECT_NE(refused("ptx/memory.cuh", memory + "#if 0\nvoid f() {\n#endif\n").find("branch"), std::string::npos);
  const std::string& timeline = device_sources().at("ptx/timeline.cuh");
  EXPECT_EQ(refused("ptx/timeline.cuh", timeline + "// a remark\n"), "");
  EXPECT_NE(refused("ptx/timeline.cuh", timeline + "FC_DEVICE void f() { track_places<1>[0] += 1; }\n")
                .find("outlives the launch"),
            std::string::npos);
}

TEST(DeviceCode, TheCompilersWordsHaveTheirPlace) {
  EXPECT_EQ(refusal("FC_DEVICE void f() { __nanosleep(1); }", "ptx/sleep.cuh"), "");
  EXPECT_NE(refusal("#include \"/etc/passwd\"", "ptx/fence.cuh"), "");
}

TEST(DeviceCode, ARefusalNamesTheLine) {
  EXPECT_EQ(refusal("\n\nint ok();\n").substr(0, 21), "sm80_fwd/extra.cuh:3:");
  EXPECT_EQ(refusal("// a \\\n b\n\nextern int i;").substr(0, 21), "sm80_fwd/extra.cuh:4:");
}

TEST(DeviceCode, ATrustedPatchIsNotAsked) {
  Patch patch;
  patch.name = "x";
  patch.family = "sm80_fwd";
  patch.files["sm80_fwd/kernel.cuh"] = "extern int i;";
  EXPECT_THROW(make_patched_family(patch), Error);
  patch.trusted = true;
  EXPECT_FALSE(make_patched_family(patch)->is_foreign());
}

TEST(DeviceCode, ATextThatOccursTwiceWithItselfOccursTwice) {
  Patch patch;
  patch.name = "x";
  patch.family = "sm80_fwd";
  patch.files = {{"sm80_fwd/extra.cuh", "// aaa\n"}};
  patch.replace = {{"sm80_fwd/extra.cuh", "aa", "b"}};
  try {
    make_patched_family(patch);
    ADD_FAILURE() << "which of the two was replaced?";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("occurs 2 times"), std::string::npos) << e.what();
  }
}

TEST(DeviceCode, AFileOfAPatchIsPlainWhenItIsRead) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "plain", "text");
  EXPECT_EQ(read_patch_file(folder / "plain", 4), "text");
  EXPECT_THROW(read_patch_file(folder / "plain", 3), Error);
  std::filesystem::create_symlink(folder / "plain", folder / "link");
  EXPECT_THROW(read_patch_file(folder / "link", 100), Error);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_patch_file(folder / "pipe", 100), Error);
  EXPECT_THROW(read_patch_file(folder / "missing", 100), Error);
}

TEST(DeviceCode, PathsOfAPatchGoDown) {
  Patch patch;
  patch.name = "x";
  patch.family = "sm80_fwd";
  for (const char* path : {"sm80_fwd/../../x.cuh", "sm80_fwd/./x.cuh", "/sm80_fwd/x.cuh", "sm80_fwd//x.cuh"}) {
    patch.files = {{path, "namespace flashcore {}"}};
    EXPECT_THROW(make_patched_family(patch), Error) << path;
  }
}

}  // namespace
}  // namespace flashcore
