#include "core/tensor_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

FileTensor sample(DType dtype, std::vector<std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  FileTensor tensor{dtype, std::move(shape),
                    std::vector<std::byte>(static_cast<std::size_t>(elements) * size_of(dtype))};
  for (std::int64_t i = 0; i < elements; ++i)
    store_element(dtype, tensor.data.data(), i, 0.25f * static_cast<float>(i) - 1);
  return tensor;
}

std::string u64(std::uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

std::string safetensors(const std::string& header, std::size_t data_bytes) {
  return u64(header.size()) + header + std::string(data_bytes, '\0');
}

std::string npy(const std::string& header, std::size_t data_bytes) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file.push_back(static_cast<char>(header.size() & 0xff));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file + header + std::string(data_bytes, '\0');
}

class TensorFileTest : public ::testing::Test {
 protected:
  // Reads `bytes` as a file of that name: "" if it is accepted, else the message, which must name the file.
  std::string message(const std::string& name, const std::string& bytes, const std::string& tensor = "") {
    const std::string path = (folder_ / name).string();
    std::filesystem::remove(path);  // ext4 flushes a file that is cut and rewritten
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      read_tensor(tensor.empty() ? path : path + ":" + tensor);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      return error.what();
    }
  }
  void expect_refused(const std::string& name, const std::string& bytes, const std::string& reason,
                      const std::string& tensor = "") {
    const std::string said = message(name, bytes, tensor);
    EXPECT_NE(said.find(reason), std::string::npos)
        << "said: " << (said.empty() ? "accepted" : said) << "\nwanted: " << reason;
  }

  test::TemporaryFolder folder_;
};

TEST_F(TensorFileTest, RoundTrips) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{2, 3, 4, 5}, {7}, {}, {2, 0, 3}}) {
      for (const char* name : {"t.npy", "t.safetensors", "t.safetensors:other"}) {
        if (dtype == DType::kBF16 && std::string(name) == "t.npy") continue;
        const FileTensor tensor = sample(dtype, shape);
        const std::string where = (folder_ / name).string();
        write_tensor(where, tensor, "q");
        const FileTensor again = read_tensor(where);
        EXPECT_EQ(again.dtype, tensor.dtype);
        EXPECT_EQ(again.shape, tensor.shape);
        EXPECT_EQ(again.data, tensor.data);
      }
    }
  }
  write_tensor((folder_ / "named.safetensors").string(), sample(DType::kF16, {3}), "q");
  EXPECT_EQ(read_tensor((folder_ / "named.safetensors:q").string()).shape, (std::vector<std::int64_t>{3}));
}

TEST_F(TensorFileTest, NpyNeedsAnotherFormatForBf16) {
  EXPECT_THROW(write_tensor((folder_ / "t.npy").string(), sample(DType::kBF16, {2}), "q"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.npy"));
}

TEST_F(TensorFileTest, NpyAsNumpyWritesIt) {
  for (const char* descr : {"<V2", "|V2", "bfloat16"}) {
    ASSERT_EQ(
        message("t.npy", npy(fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (3,), }}   \n", descr), 6)),
        "");
    EXPECT_EQ(read_tensor((folder_ / "t.npy").string()).dtype, DType::kBF16);
  }
  std::string version2("\x93NUMPY\x02\x00", 8);
  const std::string header = "{'shape': (1, 2), 'descr': '<f2', 'fortran_order': False}\n";
  version2 += u64(header.size()).substr(0, 4) + header + std::string(4, '\0');
  EXPECT_EQ(message("t.npy", version2), "");
}

TEST_F(TensorFileTest, UnknownFormatsAndMissingFiles) {
  EXPECT_THROW(read_tensor("tensor.bin"), Error);
  EXPECT_THROW(read_tensor((folder_ / "absent.npy").string()), Error);
  EXPECT_THROW(read_tensor((folder_ / "absent.safetensors").string()), Error);
}

TEST_F(TensorFileTest, EveryTruncationOfAGoodFileIsRefused) {
  write_tensor((folder_ / "good.npy").string(), sample(DType::kF16, {2, 3}), "q");
  write_tensor((folder_ / "good.safetensors").string(), sample(DType::kF16, {2, 3}), "q");
  for (const char* suffix : {".npy", ".safetensors"}) {
    const std::string good = read_file(folder_ / (std::string("good") + suffix));
    for (std::size_t size = 0; size < good.size(); ++size) {
      EXPECT_NE(message(std::string("cut") + suffix, good.substr(0, size)), "") << size << suffix;
    }
    EXPECT_NE(message(std::string("long") + suffix, good + "x"), "");
    EXPECT_EQ(message(std::string("same") + suffix, good), "");
  }
}

// No flipped bit may crash or hang the reader, or give a tensor whose data does not fit its shape.
TEST_F(TensorFileTest, FlippedBitsAreReadConsistentlyOrRefused) {
  write_tensor((folder_ / "good.npy").string(), sample(DType::kF16, {2, 3}), "q");
  write_tensor((folder_ / "good.safetensors").string(), sample(DType::kF16, {2, 3}), "q");
  for (const char* suffix : {".npy", ".safetensors"}) {
    const std::string good = read_file(folder_ / (std::string("good") + suffix));
    const std::string path = (folder_ / (std::string("flip") + suffix)).string();
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      std::filesystem::remove(path);
      std::ofstream(path, std::ios::binary) << bad;
      try {
        const FileTensor tensor = read_tensor(path);
        std::int64_t elements = 1;
        for (const std::int64_t extent : tensor.shape) elements *= extent;
        EXPECT_EQ(tensor.data.size(), static_cast<std::size_t>(elements) * size_of(tensor.dtype)) << bit;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
      }
    }
  }
}

TEST_F(TensorFileTest, LyingNpyHeaders) {
  const auto header = [](const std::string& descr, const std::string& order, const std::string& shape) {
    return fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}}}\n", descr, order, shape);
  };
  expect_refused("t.npy", "not numpy at all", "not a .npy file");
  expect_refused("t.npy", std::string("\x93NUMPY\x09\x00\x10\x00", 10) + std::string(100, ' '), "version 9");
  expect_refused("t.npy", std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12) + std::string(100, ' '),
                 "claims 4294967295 bytes");
  expect_refused("t.npy", npy(header("'>f4'", "False", "(1,)"), 4), "'>f4', which is not supported");
  expect_refused("t.npy", npy(header("'<f8'", "False", "(1,)"), 8), "use '<f4'");
  expect_refused("t.npy", npy(header("[('a', '<f4')]", "False", "(1,)"), 4), "structured");
  expect_refused("t.npy", npy(header("'<f4'", "True", "(1,)"), 4), "Fortran order");
  expect_refused("t.npy", npy(header("'<f4'", "Maybe", "(1,)"), 4), "neither True nor False");
  expect_refused("t.npy", npy(header("'<f4'", "False", "(2,)"), 4), "takes 8 bytes, but the file holds 4");
  expect_refused("t.npy", npy(header("'<f4'", "False", "(-1,)"), 4), "not a whole number");
  expect_refused("t.npy", npy(header("'<f4'", "False", "(99999999999999999999,)"), 4), "not a whole number");
  expect_refused("t.npy", npy(header("'<f4'", "False", "(4294967296, 4294967296, 4)"), 0), "more than 2^64");
  expect_refused("t.npy", npy(header("'<f4'", "False", "3"), 4), "'(' is missing");
  expect_refused("t.npy", npy(header("'<f4'", "False", "(1,"), 4), "header cannot be read");
  expect_refused("t.npy", npy("{'descr': '<f4', 'descr': '<f2', 'fortran_order': False, 'shape': (1,)}", 4),
                 "unexpected key 'descr'");
  expect_refused("t.npy", npy("{'descr': '<f4', 'fortran_order': False}", 4), "is missing");
  expect_refused("t.npy", npy("", 4), "'{' is missing");
}

TEST_F(TensorFileTest, LyingSafetensorsHeaders) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  const char* name = "t.safetensors";
  expect_refused(name, "short", "fewer than a safetensors header");
  expect_refused(name, u64(~std::uint64_t{0}) + "{}", "claims 18446744073709551615 bytes");
  expect_refused(name, u64(std::uint64_t{1} << 40) + "{}", "claims 1099511627776 bytes");
  expect_refused(name, safetensors("[1,2]", 0), "not a JSON object");
  expect_refused(name, safetensors("{\"t\":", 0), "not JSON");
  expect_refused(name, safetensors(std::string(5000, '['), 0), "not JSON");
  expect_refused(name, safetensors("{}", 0), "holds no tensor");
  expect_refused(name, safetensors(R"({"t":5})", 0), "lacks a proper");
  expect_refused(name, safetensors(R"({"t":{"dtype":"F16","shape":[1]}})", 2), "lacks a proper");
  expect_refused(name, safetensors(one("F16", "[-1]", "[0,2]"), 2), "lacks a proper");
  expect_refused(name, safetensors(one("F16", "[1.5]", "[0,2]"), 2), "lacks a proper");
  expect_refused(name, safetensors(one("F16", "[1]", "[0,2,4]"), 2), "lacks a proper");
  expect_refused(name, safetensors(one("F16", "[1]", "[2,0]"), 2), "does not fit its shape");
  expect_refused(name, safetensors(one("F16", "[2]", "[0,2]"), 2), "does not fit its shape");
  expect_refused(name, safetensors(one("F16", "[4294967296,4294967296,2]", "[0,0]"), 0), "does not fit its shape");
  expect_refused(name, safetensors(one("F16", "[2]", "[0,4]"), 2), "only 2 bytes of data follow");
  expect_refused(name, safetensors(one("F16", "[2]", "[2,6]"), 6), "there is a gap");
  expect_refused(name, safetensors(one("F16", "[2]", "[0,4]"), 9), "5 bytes follow the last tensor");
  expect_refused(name, safetensors(one("F64", "[1]", "[0,8]"), 8), "'t' is F64, which is not supported");
  expect_refused(
      name,
      safetensors(
          R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}})",
          6),
      "overlaps another");
  expect_refused(
      name,
      safetensors(
          R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})",
          2),
      "given twice");
}

TEST_F(TensorFileTest, SafetensorsWithSeveralTensorsNeedsAName) {
  const std::string file = safetensors(
      R"({"__metadata__":{"format":"pt"},"k":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"i":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}})",
      12);
  expect_refused("t.safetensors", file, "holds 2 tensors (i, k)");
  expect_refused("t.safetensors", file, "no tensor 'q'; the file has i, k", "q");
  EXPECT_EQ(message("t.safetensors", file, "k"), "");
}

TEST_F(TensorFileTest, ManyTensorsAreReadInLinearTime) {
  std::string header = "{";
  for (int i = 0; i < 20000; ++i)
    header += fmt::format("{}\"t{}\":{{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[{},{}]}}", i == 0 ? "" : ",",
                          i, 2 * i, 2 * i + 2);
  const auto start = std::clock();
  EXPECT_EQ(message("many.safetensors", safetensors(header + "}", 40000), "t19999"), "");
  // 27 s when the header was read in quadratic time.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5);
}

TEST_F(TensorFileTest, ForeignNamesAreQuotedHarmlessly) {
  const std::string said = message(
      "x.safetensors", safetensors(R"({"\u001b[2J\u0000":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4));
  EXPECT_NE(said.find("\\x1b[2J\\x00"), std::string::npos) << said;
}

}  // namespace
}  // namespace flashcore
