#include "lab/diagnose/sass.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "kernels/family.h"
#include "lab/diagnose/gather.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

// As nvdisasm 12.8 writes it.
constexpr const char* kText = R"(
	.target	sm_90
//--------------------- .text._Z4one  --------------------------
	.section	.text._Z4one,"ax",@progbits
.text._Z4one:
	//## File "/tmp/x/flashcore.cu", line 2
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/tmp/x/kernels/ptx/memory.cuh", line 30 inlined at "/tmp/x/kernels/ref_fwd/kernel.cuh", line 5
	//## File "/tmp/x/kernels/ref_fwd/kernel.cuh", line 5 inlined at "/tmp/x/flashcore.cu", line 2
	//## File "/tmp/x/flashcore.cu", line 2
        /*0010*/                   LDG.E R13, desc[UR8][R2.64] ;             /* 0x0000000802067981 */
                                                                             /* 0x000ea2000c1e9900 */
        /*0020*/              @!P0 BRA `(.L_x_0) ;
.L_x_0:
	//## File "/tmp/x/kernels/ptx/memory.cuh", line 30 inlined at "/tmp/x/kernels/ref_fwd/kernel.cuh", line 9
	//## File "/tmp/x/kernels/ref_fwd/kernel.cuh", line 9 inlined at "/tmp/x/flashcore.cu", line 2
        /*0030*/                   LDG.E R14, desc[UR8][R2.64+0x4] ;
	.section	.text._Z3two,"ax",@progbits
        /*0000*/                   EXIT ;
)";

TEST(Sass, InstructionsHaveTheirKernelTheirTextAndTheChainOfTheirLines) {
  const auto all = parse_sass(kText);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].kernel, "_Z4one");
  EXPECT_EQ(all[0].text, "LDC R1, c[0x0][0x28]");
  EXPECT_EQ(all[1].address, "0010");
  EXPECT_EQ(all[1].text, "LDG.E R13, desc[UR8][R2.64]") << "without its encoding";
  EXPECT_EQ(all[1].places,
            (std::vector<SourcePlace>{
                {"kernels/ptx/memory.cuh", 30}, {"kernels/ref_fwd/kernel.cuh", 5}, {"/tmp/x/flashcore.cu", 2}}));
  EXPECT_EQ(all[2].places, all[1].places) << "a line holds until the next one is named";
  EXPECT_EQ(all[3].places.size(), 2u) << "and not longer";
  EXPECT_EQ(all[4].kernel, "_Z3two");
  EXPECT_TRUE(all[4].places.empty()) << "another kernel begins without a line";
}

TEST(Sass, TextWithoutLinesIsNoAnswer) {
  for (const char* text :
       {"", "nothing", "        /*0000*/                   EXIT ;\n", "//## File \"x\", line no\n/*0000*/ EXIT ;\n"})
    EXPECT_THROW(parse_sass(text), Error) << text;
}

TEST(Sass, HotLinesAreThoseOfTheMostUnitsAndEachCallerIsALineOfItsOwn) {
  EmulatorCounts counts;
  const auto line = [](const char* where, const char* caller, double requests, double units) {
    return CountedLine{where, caller, "global load", requests, units, 1};
  };
  counts.lines = {line("kernels/other.cuh:1 f: ld", "", 1, 1), line("kernels/ref_fwd/kernel.cuh:9 g: ld", "", 10, 4),
                  line("kernels/ptx/memory.cuh:30 ld: ld", "kernels/ref_fwd/kernel.cuh:5 f", 100, 8),
                  line("kernels/ptx/memory.cuh:30 ld: ld", "kernels/ref_fwd/kernel.cuh:5 f", 100, 4)};
  const std::map<std::string, std::string> sources = {
      {"kernels/ref_fwd/kernel.cuh", "1\n2\n3\n4\n5\n6\n7\n8\n  nine;\n"}};
  const auto hot = hot_lines(counts, parse_sass(kText), sources, 2);
  ASSERT_EQ(hot.size(), 2u);
  EXPECT_EQ(hot[0].counted.requests, 200) << "two accesses of one line";
  EXPECT_EQ(hot[0].counted.units_per_request, 6);
  EXPECT_EQ(hot[0].source, "") << "a source that is not here has no text";
  ASSERT_EQ(hot[0].instructions.size(), 2u) << "those of the caller in line 9 are not its";
  EXPECT_EQ(hot[0].instructions[0].text, "LDG.E R13, desc[UR8][R2.64]");
  EXPECT_EQ(hot[1].source, "nine;");
  ASSERT_EQ(hot[1].instructions.size(), 1u);
  EXPECT_EQ(hot[1].instructions[0].text, "LDG.E R14, desc[UR8][R2.64+0x4]");
}

// Stands for nvdisasm: a shell script.
class FakeTool {
 public:
  explicit FakeTool(const std::string& script) : file_(folder_.path() / "nvdisasm") {
    std::ofstream(file_) << "#!/bin/sh\n" << script;
    fs::permissions(file_, fs::perms::owner_all);
  }
  std::string path() const { return file_.string(); }
  std::string folder() const { return folder_.path().string(); }

 private:
  test::TemporaryFolder folder_;
  fs::path file_;
};

TEST(Sass, TheToolIsFoundAndItsFailuresAreTold) {
  const FakeTool tool("echo \"$@\"; cat \"$3\"\n");
  EXPECT_EQ(find_nvdisasm(tool.path()), tool.path());
  EXPECT_EQ(find_nvdisasm(tool.folder() + "/nowhere"), "");
  EXPECT_EQ(find_nvdisasm("no-such-program"), "");
  const char* path = std::getenv("PATH");
  const std::string before = path ? path : "";
  setenv("PATH", (tool.folder() + ":" + before).c_str(), 1);
  EXPECT_EQ(find_nvdisasm(""), tool.path()) << "on PATH";
  setenv("PATH", before.c_str(), 1);
  const std::string said = disassemble(tool.path(), "the cubin");
  EXPECT_TRUE(said.starts_with("-gi -c ")) << said;
  EXPECT_TRUE(said.ends_with("the cubin")) << said;
  const FakeTool broken("echo 'nvdisasm fatal   : Memory allocation failure' >&2; exit 255\n");
  try {
    disassemble(broken.path(), "x");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kEnvironment);
    EXPECT_NE(std::string(e.what()).find("Memory allocation failure"), std::string::npos) << e.what();
  }
  EXPECT_THROW(disassemble(tool.folder() + "/nowhere", "x"), Error);
  const FakeTool endless("exec sleep 1000\n");
  EXPECT_THROW(disassemble(endless.path(), "x", [] { return true; }), Error);
}

}  // namespace
}  // namespace flashcore
