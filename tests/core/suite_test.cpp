#include "core/suite.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "core/embedded.h"
#include "core/error.h"
#include "core/near_names.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

constexpr const char* kGood = R"(# a comment
name: mine
problems:
  - {name: plain, num_heads: 8, seq_len: 512, head_dim: 64, dtype: fp16}
  - name: full
    batch_size: 2
    num_heads: 6
    num_kv_heads: 3
    seq_len: 1
    seq_len_kv: 99
    head_dim: 64
    head_dim_v: 32
    dtype: bf16
    causal: top_left
    layout: bshd
    scale: 0.25
  - {name: causal, num_heads: 1, seq_len: 4, head_dim: 8, dtype: fp32, causal: true}
  - {name: not_causal, num_heads: 1, seq_len: 4, head_dim: 8, dtype: fp32, causal: false}
  - {name: by_name, num_heads: 1, seq_len: 4, head_dim: 8, dtype: fp32, causal: bottom_right}
)";

std::string refused(const std::string& yaml) {
  try {
    parse_suite(yaml, "my.yaml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

// A suite of one problem, whose line is the third.
std::string with_problem(const std::string& problem) { return refused("name: s\nproblems:\n  - {" + problem + "}\n"); }

void expect_refused(const std::string& said, const std::string& start, const std::string& part) {
  EXPECT_EQ(said.substr(0, start.size()), start) << said;
  EXPECT_NE(said.find(part), std::string::npos) << said << "\nwanted: " << part;
}

TEST(SuiteTest, ReadsEveryKey) {
  const Suite suite = parse_suite(kGood, "my.yaml");
  EXPECT_EQ(suite.name, "mine");
  ASSERT_EQ(suite.problems.size(), 5u);
  EXPECT_EQ(suite.problems[0].problem.id(), "b1_h8_s512_d64_fp16");
  EXPECT_EQ(suite.problems[1].name, "full");
  EXPECT_EQ(suite.problems[1].problem.id(), "b2_h6_hk3_sq1_sk99_d64_dv32_bf16_causaltl_bshd_scale0.25");
  EXPECT_EQ(suite.problems[2].problem.mask, Mask::causal());
  EXPECT_EQ(suite.problems[3].problem.mask, Mask());
  EXPECT_EQ(suite.problems[4].problem.mask, Mask::causal());
}

TEST(SuiteTest, EveryShippedSuiteLoadsUnderItsName) {
  const std::vector<std::string> names = shipped_suites();
  for (const char* name : {"canonical", "emulator", "quick", "smoke"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  EXPECT_EQ(names.size(), embedded_suites().size());
  for (const std::string& name : names) {
    const Suite suite = load_suite(name);
    EXPECT_EQ(suite.name, name);
    std::set<std::string> ids;
    for (const NamedProblem& named : suite.problems)
      EXPECT_TRUE(ids.insert(named.problem.id()).second) << named.name << " repeats a problem";
  }
  EXPECT_EQ(find_problem(load_suite("canonical"), "mission").problem.id(), "b1_h8_s512_d64_fp16");
}

TEST(SuiteTest, SmallSuitesStaySmall) {
  for (const auto& [name, limit] :
       {std::pair<const char*, double>{"quick", 3e8}, {"smoke", 1.5e7}, {"emulator", 6e6}}) {
    for (const NamedProblem& named : load_suite(name).problems)
      EXPECT_LE(named.problem.flops(), limit) << name << " " << named.name;
  }
}

TEST(SuiteTest, LoadsAFileByPath) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "my.yaml") << kGood;
  EXPECT_EQ(load_suite((folder / "my.yaml").string()).problems.size(), 5u);
  EXPECT_THROW(load_suite((folder / "absent.yaml").string()), Error);
  try {
    load_suite("fast");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("use one of campaign, canonical, "), std::string::npos) << error.what();
  }
}

TEST(SuiteTest, FindsByNameByIdOrParsesAnId) {
  const Suite suite = parse_suite(kGood, "my.yaml");
  EXPECT_EQ(find_problem(suite, "plain").problem.id(), "b1_h8_s512_d64_fp16");
  EXPECT_EQ(find_problem(suite, "b1_h8_s512_d64_fp16").name, "plain");
  EXPECT_EQ(find_problem(suite, "b1_h8_s513_d64_fp16").name, "b1_h8_s513_d64_fp16");
  try {
    find_problem(suite, "plane");
    FAIL();
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("did you mean 'plain'?"), std::string::npos) << said;
    EXPECT_NE(said.find("the suite has plain, full, causal"), std::string::npos) << said;
    // Not the form itself, which is a page.
    EXPECT_NE(said.find("docs/problem.md"), std::string::npos) << said;
    EXPECT_EQ(said.find("b<batch>"), std::string::npos) << said;
  }
  try {
    find_problem(load_suite("canonical"), "b1_h8_s512_d64_fp99");
    FAIL();
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("fp99"), std::string::npos) << said;
    EXPECT_NE(said.find("more"), std::string::npos) << said;
    EXPECT_LT(said.size(), 600u) << said;
  }
}

TEST(SuiteTest, NamesNearToWhatWasTypedAreFew) {
  const std::vector<std::string> names = {"experiment", "explain", "bench", "ab"};
  EXPECT_EQ(near_names("experiments", names), std::vector<std::string>{"experiment"});
  EXPECT_EQ(near_names("benhc", names), std::vector<std::string>{"bench"});
  EXPECT_TRUE(near_names("nonsense", names).empty());
  EXPECT_TRUE(near_names("", names).empty());
  EXPECT_TRUE(near_names(std::string(100'000, 'b'), names).empty());
  EXPECT_EQ(did_you_mean("xplain", names), "; did you mean 'explain'?");
}

TEST(SuiteTest, ErrorsNameFileAndLine) {
  const std::string rest = "num_heads: 8, seq_len: 16, head_dim: 64, dtype: fp16";
  expect_refused(with_problem("name: a, window: 5, " + rest), "my.yaml:3: unknown key 'window'",
                 "allowed keys are name, batch_size, num_heads, num_kv_heads, seq_len, seq_len_kv, head_dim, "
                 "head_dim_v, dtype, kv_dtype, o_dtype, scaling, causal, window_left, window_right, window_alignment, "
                 "scale, softcap, "
                 "alibi, sink, lengths, page_size, v_layout, tensors, score, mask, amax, layout");
  expect_refused(with_problem("name: a, num_heads: 4, " + rest), "my.yaml:3: the key 'num_heads' is given twice",
                 "once");
  expect_refused(with_problem(rest), "my.yaml:3: ", "lacks the key 'name'");
  expect_refused(with_problem("name: a, num_heads: 8, seq_len: 16, head_dim: 64"),
                 "my.yaml:3: ", "lacks the key 'dtype'");
  expect_refused(with_problem("name: a, num_heads: 8, seq_len: 16, head_dim: 64, dtype: fp8"), "my.yaml:3: dtype 'fp8'",
                 "fp32, fp16, bf16, e4m3 or e5m2");
  expect_refused(with_problem("name: a, causal: yes, " + rest), "my.yaml:3: causal is 'yes'", "top_left");
  expect_refused(with_problem("name: a, layout: sbhd, " + rest), "my.yaml:3: layout 'sbhd'", "bhsd, bshd or strided");
  expect_refused(with_problem("name: a, scale: big, " + rest), "my.yaml:3: scale is 'big'", "not a number");
  expect_refused(with_problem("name: a, scale: 0, " + rest), "my.yaml:3: problem 'a': scale is 0", "1e-06");
  expect_refused(with_problem("name: a, batch_size: -1, " + rest), "my.yaml:3: problem 'a': batch is -1", "1");
  expect_refused(with_problem("name: a, batch_size: 1.5, " + rest), "my.yaml:3: batch_size is '1.5'",
                 "whole decimal number");
  expect_refused(with_problem("name: a, batch_size: [1], " + rest), "my.yaml:3: batch_size is a list, a map or nothing",
                 "whole decimal number");
  expect_refused(with_problem("name: a, batch_size: 99999999999999999999, " + rest), "my.yaml:3: batch_size is",
                 "63 bits");
  expect_refused(with_problem("name: a, num_kv_heads: 3, " + rest), "my.yaml:3: problem 'a': heads_kv is 3", "divide");
  expect_refused(with_problem("name: a, seq_len_kv: 5000000000, " + rest),
                 "my.yaml:3: problem 'a': seqlen_kv is 5000000000", "2147483647");
  expect_refused(with_problem("name: , " + rest), "my.yaml:3: name is not a text", "name: words");
  expect_refused(refused("name: s\nproblems:\n  - {name: a, " + rest + "}\n  - {name: a, " + rest + "}\n"),
                 "my.yaml:4: the problem name 'a' is used twice", "unique");
}

TEST(SuiteTest, Windows) {
  const std::string rest = "num_heads: 8, seq_len: 16, head_dim: 64, dtype: fp16";
  const auto id = [&](const std::string& keys) {
    return parse_suite("name: s\nproblems:\n  - {name: a, " + keys + ", " + rest + "}\n", "my.yaml")
        .problems[0]
        .problem.id();
  };
  EXPECT_EQ(id("causal: true, window_left: 4"), "b1_h8_s16_d64_fp16_causal_wl4");
  EXPECT_EQ(id("causal: top_left, window_left: 4, window_right: -1"), "b1_h8_s16_d64_fp16_causaltl_wl4");
  EXPECT_EQ(id("window_left: 4, window_right: 0"), "b1_h8_s16_d64_fp16_causal_wl4");
  EXPECT_EQ(id("window_left: none, window_right: 3, window_alignment: top_left"), "b1_h8_s16_d64_fp16_wr3_tl");
  expect_refused(with_problem("name: a, causal: true, window_right: 4, " + rest),
                 "my.yaml:3: causal is given and window_right is 4", "leave one of them out");
  expect_refused(with_problem("name: a, window_left: -2, " + rest), "my.yaml:3: problem 'a': window_left is -2",
                 "-1 for no bound");
  expect_refused(with_problem("name: a, causal: top_left, window_alignment: bottom_right, " + rest),
                 "my.yaml:3: causal is top_left and window_alignment is bottom_right", "causal says it");
  expect_refused(with_problem("name: a, window_alignment: top_left, " + rest), "my.yaml:3: problem 'a': the mask",
                 "bounds nothing");
  expect_refused(with_problem("name: a, window_left: wide, " + rest), "my.yaml:3: window_left is 'wide'", "whole");
}

TEST(SuiteTest, AKeyMayHaveTheNameThatCHas) {
  const Suite suite = parse_suite(
      "name: s\nproblems:\n  - {name: a, batch: 2, heads: 8, heads_kv: 2, seqlen_q: 4, seqlen_kv: 9, head_dim: 64, "
      "dtype: "
      "fp16}\n",
      "my.yaml");
  EXPECT_EQ(suite.problems[0].problem.id(), "b2_h8_hk2_sq4_sk9_d64_fp16");
  expect_refused(with_problem("name: a, num_heads: 8, heads_q: 8, seq_len: 4, head_dim: 64, dtype: fp16"),
                 "my.yaml:3: num_heads and heads_q are two names of one key", "one of them");
}

TEST(SuiteTest, BrokenSuites) {
  expect_refused(refused(""), "my.yaml:1: ", "name, problems");
  expect_refused(refused("just text"), "my.yaml:1: ", "not 'key: value' pairs");
  expect_refused(refused("name: s\n"), "my.yaml:1: ", "lacks the key 'problems'");
  expect_refused(refused("name: s\nproblems: 5\n"), "my.yaml:2: problems is not a list", "lines");
  expect_refused(refused("name: s\nproblems: []\n"), "my.yaml:2: problems is empty", "at least one");
  expect_refused(refused("name: s\nproblems:\n  - 5\n"), "my.yaml:3: ", "not 'key: value' pairs");
  expect_refused(refused("name: s\nproblem: []\n"), "my.yaml:2: unknown key 'problem' in a suite", "name, problems");
  expect_refused(refused("name: s\nproblems: [\n"), "my.yaml:", "not YAML");
  expect_refused(refused("name: s\n\tproblems: []\n"), "my.yaml:2", "not YAML");
}

TEST(SuiteTest, NumbersAreDecimalAndFinite) {
  const std::string rest = "name: a, head_dim: 64, dtype: fp16, num_heads: ";
  for (const char* no : {"010", "0x10", "0o10", "+8", "1_000", "8.0", "1e1", "9223372036854775808", "''", ".inf"})
    expect_refused(with_problem(rest + "8, seq_len: " + no), "my.yaml:3: seq_len is '", "whole decimal number");
  for (const char* no : {".nan", ".inf", "-.INF", "nan", "1e400", "0x1p-3"})
    expect_refused(with_problem(rest + "8, seq_len: 8, scale: " + no), "my.yaml:3: scale is '", "not a number");
}

TEST(SuiteTest, TextThatIsNoneIsRefusedWithItsLine) {
  expect_refused(refused("name: s\nproblems: \xff\n"), "my.yaml:2: ", "0xff");
  expect_refused(refused("name: s\x04\nproblems: []\n"), "my.yaml:1: ", "0x04");
  expect_refused(refused(std::string("name: s\n\0", 9)), "my.yaml:2: ", "0x00");
  expect_refused(refused("name: s\n---\nname: t\n"), "my.yaml:", "second document");
  expect_refused(refused(""), "my.yaml:1: ", "key: value");
  expect_refused(with_problem("name: \"a\\0b\", num_heads: 1, seq_len: 1, head_dim: 64, dtype: fp16"),
                 "my.yaml:3: name is 'a\\x00b'", "control character");
  expect_refused(
      with_problem("name: " + std::string(300, 'x') + ", num_heads: 1, seq_len: 1, head_dim: 64, dtype: fp16"),
      "my.yaml:3: name has 300 bytes", "at most 100");
  // Marks at the start and Windows' line ends are how editors save.
  const std::string good =
      "\xef\xbb\xbfname: s\r\nproblems:\r\n  - {name: a, num_heads: 1, seq_len: 1, head_dim: 64, dtype: fp16}\r\n";
  EXPECT_EQ(parse_suite(good, "my.yaml").problems.front().name, "a");
}

TEST(SuiteTest, BombsEndAtOnce) {
  std::string laughs = "x0: &x0 [a,a,a,a,a,a,a,a,a]\n";
  for (int i = 1; i < 30; ++i)
    laughs += fmt::format("x{0}: &x{0} [*x{1},*x{1},*x{1},*x{1},*x{1},*x{1},*x{1},*x{1}]\n", i, i - 1);
  EXPECT_NE(refused(laughs + "name: *x29\nproblems: *x29\n"), "accepted");
  EXPECT_NE(refused("name: s\nproblems: &a [*a, *a]\n"), "accepted");
  EXPECT_NE(refused("name: s\nproblems: " + std::string(1'000'000, '[')), "accepted");
  EXPECT_NE(refused("name: s\nproblems: " + std::string(100'000, '{')), "accepted");
  EXPECT_NE(refused("name: s\nproblems:\n" + std::string(100'000, '-')), "accepted");
  EXPECT_NE(refused("!tag"), "accepted");
}

}  // namespace
}  // namespace flashcore
