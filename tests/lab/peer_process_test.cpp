// A peer that hangs, floods, dies or talks nonsense keeps nobody waiting.

#include "lab/process/peer_process.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace flashcore {
namespace {

using nlohmann::json;

PeerProcess peer(const std::string& script, double seconds = 60) {
  return PeerProcess({"/bin/sh", "-c", script}, {seconds, seconds, seconds});
}

std::string failure_of(const std::string& script, double seconds = 60) {
  PeerProcess asked = peer(script, seconds);
  try {
    asked.ask({{"op", "sample"}});
  } catch (const PeerGone& e) {
    EXPECT_FALSE(asked.is_running());
    return e.what();
  }
  return "no failure";
}

TEST(PeerProcess, AnswersComeBackAndALargeQuestionArrives) {
  PeerProcess asked = peer("read -r x; echo '{\"a\": 1}'; read -r x; echo \"{\\\"b\\\": ${#x}}\"");
  EXPECT_EQ(asked.ask({{"op", "sample"}}).at("a"), 1);
  EXPECT_GT(asked.ask({{"op", "prepare"}, {"text", std::string(1'000'000, 'x')}}).at("b"), 1'000'000);
}

TEST(PeerProcess, WhoDoesNotKeepToTheProtocolIsEnded) {
  EXPECT_NE(failure_of("exec sleep 1000", 0.3).find("gave no answer to sample within 0.3 s"), std::string::npos);
  EXPECT_NE(failure_of("exit 3").find("exited with code 3"), std::string::npos);
  EXPECT_NE(failure_of("echo words of the end >&2; exit 3").find("words of the end"), std::string::npos);
  EXPECT_NE(failure_of("read -r x; exec cat /dev/zero").find("without end"), std::string::npos);
  EXPECT_NE(failure_of("read -r x; echo 'a library says hello'; sleep 1000").find("no JSON object"), std::string::npos);
  EXPECT_NE(failure_of("read -r x; echo '[1]'; sleep 1000").find("no JSON object"), std::string::npos);
}

TEST(PeerProcess, ABudgetBoundsEveryWait) {
  double left = 0.5;
  PeerProcess silent({"/bin/sh", "-c", "exec sleep 1000"}, {.hello = 240, .prepare = 900, .other = 180, .least = 0.3});
  silent.bound_by([&] { return left; });
  const auto failure = [&](const char* op) -> std::string {
    try {
      silent.ask({{"op", op}});
    } catch (const PeerGone& e) {
      EXPECT_TRUE(silent.was_given_up());
      return e.what();
    }
    return "an answer";
  };
  EXPECT_NE(failure("prepare").find("within 0.5 s, which the budget left it"), std::string::npos);
  left = -100;
  EXPECT_NE(failure("sample").find("within 0.3 s, which the budget left it"), std::string::npos);
  // The budget makes no wait longer.
  left = 1000;
  PeerProcess limited = peer("exec sleep 1000", 0.3);
  limited.bound_by([&] { return left; });
  EXPECT_THROW(limited.ask({{"op", "sample"}}), PeerGone);
  // Who died by itself was not given up.
  PeerProcess dead = peer("exit 3");
  EXPECT_THROW(dead.ask({{"op", "sample"}}), PeerGone);
  EXPECT_FALSE(dead.was_given_up());
}

TEST(PeerProcess, AnErrorIsAnAnswerAndTheNextQuestionIsHeard) {
  PeerProcess asked = peer("read -r x; echo '{\"error\": \"no GPU\"}'; read -r x; echo '{}'");
  EXPECT_THROW(asked.ask({{"op", "sample"}}), PeerError);
  EXPECT_TRUE(asked.ask({{"op", "sample"}}).empty());
}

TEST(PeerProcess, OneThatDiedIsStartedAnewByTheNextQuestion) {
  PeerProcess asked = peer("read -r x; echo '{}'; exit 1");
  asked.ask({{"op", "sample"}});
  EXPECT_THROW(asked.ask({{"op", "sample"}}), PeerGone);
  EXPECT_TRUE(asked.ask({{"op", "sample"}}).empty());
}

TEST(PeerProcess, HelloSaysWhatIsOfferedAndWhatIsNot) {
  PeerProcess asked = peer(
      "read -r x; echo '{\"protocol\": 1, \"parties\": [{\"name\": \"a\", \"version\": \"2\", \"notes\": [\"n\"]}], "
      "\"absent\": {\"b\": \"not installed\"}}'");
  const PeerHello hello = asked.hello({{"op", "hello"}});
  ASSERT_EQ(hello.parties.size(), 1U);
  EXPECT_EQ(hello.parties[0].name + hello.parties[0].version + hello.parties[0].notes.at(0), "a2n");
  EXPECT_EQ(hello.absent.at("b"), "not installed");
  for (const char* bad : {"{\"protocol\": 2, \"parties\": []}", "{}", "{\"protocol\": 1, \"parties\": 3}"}) {
    PeerProcess other = peer(std::string("read -r x; echo '") + bad + "'");
    EXPECT_THROW(other.hello({{"op", "hello"}}), Error) << bad;
  }
  PeerProcess missing({"no-such-program-anywhere"});
  EXPECT_THROW(missing.hello({{"op", "hello"}}), Error);
}

TEST(PeerCommand, IsAProgramOrAListOfWords) {
  EXPECT_EQ(parse_peer_command("a b"), std::vector<std::string>{"a b"});
  EXPECT_EQ(parse_peer_command(R"(["python3", "-m", "x"])"), (std::vector<std::string>{"python3", "-m", "x"}));
  for (const char* bad : {"[]", "[1]", "[\"a\""}) EXPECT_THROW(parse_peer_command(bad), Error) << bad;
}

}  // namespace
}  // namespace flashcore
