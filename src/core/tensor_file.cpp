#include "core/tensor_file.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"

namespace flashcore {
namespace {

constexpr std::string_view kNpySuffix = ".npy", kSafetensorsSuffix = ".safetensors";
constexpr std::string_view kNpyMagic("\x93NUMPY", 6);
constexpr std::size_t kMaxRank = 32;
// The format's own limit; more is a corrupt or hostile file.
constexpr std::uint64_t kMaxHeader = 100'000'000;

enum class Format { kNpy, kSafetensors };

struct Location {
  std::string path, name;  // name: empty if none was given
  Format format = Format::kNpy;
};

Location locate(const std::string& where) {
  if (where.ends_with(kNpySuffix)) return {where, "", Format::kNpy};
  if (where.ends_with(kSafetensorsSuffix)) return {where, "", Format::kSafetensors};
  const std::string marker = std::string(kSafetensorsSuffix) + ":";
  if (const std::size_t at = where.find(marker); at != std::string::npos) {
    const std::size_t end = at + kSafetensorsSuffix.size();
    return {where.substr(0, end), where.substr(end + 1), Format::kSafetensors};
  }
  throw_bad_input(
      "cannot tell the format of '{}'; use a name that ends in .npy or .safetensors (or .safetensors:tensor_name)",
      excerpt(where));
}

// All complaints about one file start with its name.
class Complaint {
 public:
  explicit Complaint(const std::string& path) : path_(excerpt(path)) {}
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_bad_input("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string path_;
};

// Bytes that `shape` takes; none if that overflows.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, std::size_t element) {
  std::uint64_t bytes = element;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const std::int64_t extent : shape) {
    const auto size = static_cast<std::uint64_t>(extent);
    if (bytes > std::numeric_limits<std::uint64_t>::max() / size) return std::nullopt;
    bytes *= size;
  }
  return bytes;
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::string to_little_endian(std::uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i, value >>= 8) bytes.push_back(static_cast<char>(value & 0xff));
  return bytes;
}

std::vector<std::byte> to_bytes(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// What a reader takes: bytes of an element of a dtype that it takes, 0 of others; and what it says of those.
struct Accepted {
  std::size_t (*size)(std::string_view dtype);
  const char *npy, *safetensors;
};

struct RawTensor {
  std::string dtype;  // as the format names it
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

// --- npy ------------------------------------------------------------------------------------------------------------
// The header is a Python dict literal with the keys descr, fortran_order and shape, in any order.
class NpyHeader {
 public:
  NpyHeader(std::string_view text, const Complaint& complaint) : text_(text), complaint_(complaint) {
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && descr.empty())
        descr = peek() == '\'' || peek() == '"'
                    ? string()
                    : bad("descr is not a plain dtype (structured arrays are not supported)");
      else if (key == "fortran_order" && !fortran_order) fortran_order = boolean();
      else if (key == "shape" && !shape) shape = tuple();
      else bad(fmt::format("unexpected key '{}'", excerpt(key)));
      if (!take(',') && peek() != '}') bad("a ',' is missing");
    }
    if (peek() != '\0') bad("there is text after the closing brace");
    if (descr.empty() || !fortran_order || !shape) bad("descr, fortran_order or shape is missing");
  }
  std::string descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  [[noreturn]] std::string bad(const std::string& reason) const {
    complaint_.fail("the .npy header cannot be read: {}; write the file with numpy.save", reason);
  }
  char peek() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) text_.remove_prefix(1);
    return text_.empty() ? '\0' : text_[0];
  }
  bool take(char c) {
    if (peek() != c || text_.empty()) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) bad(fmt::format("'{}' is missing", c));
  }
  std::string string() {
    const char quote = peek();
    const std::size_t end = quote == '\'' || quote == '"' ? text_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) bad("a quoted word is missing");
    std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }
  bool boolean() {
    peek();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return value;
    }
    bad("fortran_order is neither True nor False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> extents;
    expect('(');
    while (!take(')')) {
      std::int64_t extent = 0;
      peek();
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0) bad("an extent of the shape is not a whole number of at most 63 bits");
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      extents.push_back(extent);
      if (extents.size() > kMaxRank) bad("the shape has more than 32 dimensions");
      if (!take(',') && peek() != ')') bad("the shape is not a tuple");
    }
    return extents;
  }

  std::string_view text_;
  const Complaint& complaint_;
};

RawTensor raw_npy(std::string_view file, const std::string& origin, const Accepted& accepted) {
  const Complaint complaint(origin);
  if (!file.starts_with(kNpyMagic))
    complaint.fail("this is not a .npy file (it does not start with \\x93NUMPY); write it with numpy.save");
  if (file.size() < 8)
    complaint.fail("the file ends after {} bytes, within the .npy header; it is truncated: write it again",
                   file.size());
  const int version = static_cast<unsigned char>(file[6]);
  if (version < 1 || version > 3) complaint.fail(".npy version {} is not known; versions 1 to 3 are", version);
  const std::size_t length_bytes = version == 1 ? 2 : 4, start = 8 + length_bytes;
  if (file.size() < start)
    complaint.fail("the file ends after {} bytes, within the .npy header; it is truncated: write it again",
                   file.size());
  const std::uint64_t length = little_endian(file.substr(8, length_bytes));
  if (length > file.size() - start) {
    complaint.fail(
        "the .npy header claims {} bytes, but only {} follow; the file is truncated or corrupt: write it again", length,
        file.size() - start);
  }
  const NpyHeader header(file.substr(start, length), complaint);
  const std::size_t element = accepted.size(header.descr);
  if (element == 0)
    complaint.fail("the dtype is '{}', which is not supported; use {}", excerpt(header.descr), accepted.npy);
  if (*header.fortran_order) complaint.fail("the array is in Fortran order; save numpy.ascontiguousarray(array)");
  RawTensor tensor{header.descr, *header.shape, {}};
  const auto bytes = bytes_of(tensor.shape, element);
  const std::string_view data = file.substr(start + length);
  if (!bytes || *bytes != data.size()) {
    complaint.fail("shape ({}) of {} takes {} bytes, but the file holds {}; it is truncated or corrupt: write it again",
                   fmt::join(tensor.shape, ", "), excerpt(header.descr),
                   bytes ? std::to_string(*bytes) : "more than 2^64", data.size());
  }
  tensor.data = to_bytes(data);
  return tensor;
}

void write_npy(const std::string& path, const FileTensor& tensor) {
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16)
    throw_bad_input("{}: .npy has no {}; use a name that ends in .safetensors", path, to_string(tensor.dtype));
  // A tuple of one keeps its comma.
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                   tensor.dtype == DType::kF32 ? "<f4" : "<f2", fmt::join(tensor.shape, ", "),
                                   tensor.shape.size() == 1 ? "," : "");
  // Data starts at a multiple of 64, so that it can be mapped.
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header.push_back('\n');
  std::string file = std::string(kNpyMagic) + std::string("\x01\x00", 2) + to_little_endian(header.size(), 2) + header;
  file.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  write_file_atomically(path, file);
}

// --- safetensors ----------------------------------------------------------------------------------------------------
struct Entry {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // within the data that follows the header
};

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kE4M3: return "F8_E4M3";
    case DType::kE5M2: return "F8_E5M2";
    case DType::kInt8: return "I8";
    case DType::kInt4: return "U8";  // two a byte: nothing else has a name
  }
  throw_internal("unknown dtype {}", static_cast<int>(dtype));
}

// Bytes of one element of every dtype the format knows; 0 for one that it does not.
std::size_t safetensors_size(std::string_view dtype) {
  for (const std::string_view one : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"}) {
    if (dtype == one) return 1;
  }
  for (const std::string_view two : {"F16", "BF16", "I16", "U16"}) {
    if (dtype == two) return 2;
  }
  for (const std::string_view four : {"F32", "I32", "U32"}) {
    if (dtype == four) return 4;
  }
  for (const std::string_view eight : {"F64", "I64", "U64", "C64"}) {
    if (dtype == eight) return 8;
  }
  return 0;
}

// In time linear in the header: 20,000 tensors are nothing unusual.
nlohmann::json parse_header(std::string_view text, const std::string& origin) {
  try {
    nlohmann::json header = parse_json(text, "the header");
    if (!header.is_object()) throw_bad_input("the header is not a JSON object");
    return header;
  } catch (const Error& error) {
    throw_bad_input("{}: this is no safetensors file, or it is corrupt: {}; write it again", excerpt(origin),
                    error.what());
  }
}

Entry read_entry(const std::string& name, const nlohmann::json& json, const Complaint& complaint) {
  const auto is_list = [&](const char* key) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_array()) return false;
    return std::all_of(json[key].begin(), json[key].end(), [](const nlohmann::json& item) {
      return item.is_number_unsigned() &&
             item.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    });
  };
  if (!is_list("shape") || !is_list("data_offsets") || json["data_offsets"].size() != 2 ||
      json["shape"].size() > kMaxRank || !json.contains("dtype") || !json["dtype"].is_string()) {
    complaint.fail(
        "the header entry of tensor '{}' lacks a proper dtype, shape or data_offsets; the file is corrupt: write it "
        "again",
        excerpt(name));
  }
  Entry entry{name, json["dtype"].get<std::string>(), json["shape"].get<std::vector<std::int64_t>>(),
              json["data_offsets"][0].get<std::uint64_t>(), json["data_offsets"][1].get<std::uint64_t>()};
  const std::size_t element = safetensors_size(entry.dtype);
  const auto bytes = bytes_of(entry.shape, element == 0 ? 1 : element);
  const bool backwards = entry.end < entry.begin;
  if (backwards || (element != 0 && (!bytes || *bytes != entry.end - entry.begin))) {
    complaint.fail(
        "tensor '{}' of {} [{}] is said to take bytes {} to {}, which does not fit its shape; the file is corrupt: "
        "write it again",
        excerpt(name), excerpt(entry.dtype), fmt::join(entry.shape, ", "), entry.begin, entry.end);
  }
  return entry;
}

// The format asks that tensors cover the data exactly: no gap, no overlap, nothing after the last.
void check_cover(std::vector<Entry> entries, std::uint64_t size, const Complaint& complaint) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::uint64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.end > size) {
      complaint.fail(
          "tensor '{}' takes bytes {} to {}, but only {} bytes of data follow the header; the file is truncated: write "
          "it again",
          excerpt(entry.name), entry.begin, entry.end, size);
    }
    if (entry.begin != at) {
      complaint.fail("tensor '{}' starts at byte {} where {} was expected ({}); the file is corrupt: write it again",
                     excerpt(entry.name), entry.begin, at, entry.begin < at ? "it overlaps another" : "there is a gap");
    }
    at = entry.end;
  }
  if (at != size) complaint.fail("{} bytes follow the last tensor; the file is corrupt: write it again", size - at);
}

const Entry& select(const std::vector<Entry>& entries, const std::string& name, const Complaint& complaint) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    if (entry.name == name || (name.empty() && entries.size() == 1)) return entry;
    if (names.size() < 20) names.push_back(excerpt(entry.name, 60));
  }
  const std::string known = fmt::format("{}{}", fmt::join(names, ", "), entries.size() > names.size() ? ", ..." : "");
  if (entries.empty()) complaint.fail("the file holds no tensor; give one that does");
  if (name.empty())
    complaint.fail("the file holds {} tensors ({}); say which, as file.safetensors:name", entries.size(), known);
  complaint.fail("there is no tensor '{}'; the file has {}", excerpt(name), known);
}

RawTensor raw_safetensors(std::string_view file, const std::string& origin, const std::string& name,
                          const Accepted& accepted) {
  const Complaint complaint(origin);
  if (file.size() < 8)
    complaint.fail("the file has {} bytes, fewer than a safetensors header; it is truncated: write it again",
                   file.size());
  const std::uint64_t length = little_endian(file.substr(0, 8));
  if (length > kMaxHeader || length > file.size() - 8) {
    complaint.fail(
        "the safetensors header claims {} bytes, but {} follow and at most {} are allowed; the file is truncated or of "
        "another format",
        length, file.size() - 8, kMaxHeader);
  }
  const std::string_view data = file.substr(8 + length);
  std::vector<Entry> entries;
  const nlohmann::json header = parse_header(file.substr(8, length), origin);
  for (const auto& [key, json] : header.items()) {
    if (key != "__metadata__") entries.push_back(read_entry(key, json, complaint));
  }
  check_cover(entries, data.size(), complaint);
  const Entry& entry = select(entries, name, complaint);
  if (accepted.size(entry.dtype) == 0)
    complaint.fail("tensor '{}' is {}, which is not supported; use {}", excerpt(entry.name), excerpt(entry.dtype),
                   accepted.safetensors);
  return {entry.dtype, entry.shape, to_bytes(data.substr(entry.begin, entry.end - entry.begin))};
}

void write_safetensors(const Location& where, const FileTensor& tensor, const std::string& name) {
  const std::string& key = where.name.empty() ? name : where.name;
  const nlohmann::json json = {{key,
                                {{"dtype", safetensors_name(tensor.dtype)},
                                 {"shape", tensor.shape},
                                 {"data_offsets", {0, tensor.data.size()}}}}};
  std::string header = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  header.append((8 - header.size() % 8) % 8, ' ');  // the data starts aligned
  std::string file = to_little_endian(header.size(), 8) + header;
  file.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  write_file_atomically(where.path, file);
}

// More than the machine's memory cannot be read, and a sparse file claims it for nothing.
std::uint64_t max_tensor_file() {
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
}

// --- dtypes -------------------------------------------------------------------------------------------------------
std::optional<DType> attention_dtype(std::string_view name) {
  if (name == "<f4") return DType::kF32;
  if (name == "<f2") return DType::kF16;
  if (name == "<V2" || name == "|V2" || name == "bfloat16") return DType::kBF16;
  for (const DType dtype : kAllDTypes)
    if (name == safetensors_name(dtype)) return dtype;
  return std::nullopt;
}

constexpr Accepted kAttention = {[](std::string_view name) {
                                   const auto dtype = attention_dtype(name);
                                   return dtype ? size_of(*dtype) : 0;
                                 },
                                 "'<f4' (float32), '<f2' (float16) or bfloat16: array.astype(numpy.float16)",
                                 "F32, F16, BF16, F8_E4M3 or F8_E5M2"};

FileTensor as_attention(RawTensor raw) { return {*attention_dtype(raw.dtype), raw.shape, std::move(raw.data)}; }

std::size_t element_size(std::string_view name) {
  if (name == "<f4" || name == "F32" || name == "<i4" || name == "I32") return 4;
  if (name == "<i8" || name == "I64") return 8;
  return name == "|b1" || name == "BOOL" ? 1 : 0;
}

constexpr Accepted kElements = {element_size, "'<f4' (float32), '<i4' (int32), '<i8' (int64) or '|b1' (bool)",
                                "F32, I32, I64 or BOOL"};

std::vector<std::byte> narrow(const std::vector<std::byte>& wide, const std::string& where) {
  std::vector<std::byte> out(wide.size() / 2);
  for (std::size_t i = 0; i < wide.size() / 8; ++i) {
    std::int64_t value = 0;
    std::memcpy(&value, wide.data() + 8 * i, 8);
    const auto small = static_cast<std::int32_t>(value);
    if (small != value)
      throw_bad_input("{}: element {} is {}, and functions read ints of 32 bits; save smaller numbers", excerpt(where),
                      i, value);
    std::memcpy(out.data() + 4 * i, &small, 4);
  }
  return out;
}

RawTensor read_raw(const std::string& where, const Accepted& accepted) {
  const Location location = locate(where);
  const std::string file = read_file(location.path, max_tensor_file());
  return location.format == Format::kNpy ? raw_npy(file, location.path, accepted)
                                         : raw_safetensors(file, location.path, location.name, accepted);
}

}  // namespace

FileTensor parse_npy(std::string_view file, const std::string& origin) {
  return as_attention(raw_npy(file, origin, kAttention));
}

FileTensor parse_safetensors(std::string_view file, const std::string& origin, const std::string& name) {
  return as_attention(raw_safetensors(file, origin, name, kAttention));
}

FileTensor read_tensor(const std::string& where) { return as_attention(read_raw(where, kAttention)); }

FileElements read_elements(const std::string& where) {
  RawTensor raw = read_raw(where, kElements);
  if (raw.dtype == "<i8" || raw.dtype == "I64") return {ExpressionType::kInt, raw.shape, narrow(raw.data, where)};
  if (element_size(raw.dtype) == 1) {
    for (std::byte& byte : raw.data) byte = std::byte(byte != std::byte(0));
    return {ExpressionType::kBool, raw.shape, std::move(raw.data)};
  }
  const bool is_float = raw.dtype == "<f4" || raw.dtype == "F32";
  return {is_float ? ExpressionType::kFloat : ExpressionType::kInt, raw.shape, std::move(raw.data)};
}

void write_tensor(const std::string& where, const FileTensor& tensor, const std::string& name) {
  FC_CHECK(bytes_of(tensor.shape, size_of(tensor.dtype)) == tensor.data.size());
  const Location location = locate(where);
  if (location.format == Format::kNpy) write_npy(location.path, tensor);
  else write_safetensors(location, tensor, name);
}

}  // namespace flashcore
