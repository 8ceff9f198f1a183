#include "core/json_text.h"

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 100;

// Not the library's parser with a callback: that one walks an object anew for every value that ends in it.
class Builder final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return refuse("JSON has no binary values"); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    const auto [place, is_new] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!is_new) return refuse(fmt::format("the key '{}' is given twice in one object", excerpt(name)));
    value_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string_view what = error.what();
    return refuse(excerpt(what.substr(std::min(what.size(), what.find("] ") + 2)), 300));
  }

  json document;
  std::string refusal;

 private:
  bool refuse(std::string why) {
    refusal = std::move(why);
    return false;
  }
  json* place(json value) {
    if (open_.empty()) return &(document = std::move(value));
    if (json* parent = open_.back(); parent->is_array()) {
      parent->push_back(std::move(value));
      return &parent->back();
    }
    return &(*value_ = std::move(value));
  }
  bool add(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json container) {
    if (open_.size() == kMaxDepth) return refuse(fmt::format("it is nested deeper than {}", kMaxDepth));
    open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  // Only ancestors of what is being read: nothing moves them, because their parents grow after they have closed.
  std::vector<json*> open_;
  json* value_ = nullptr;  // of the last key
};

}  // namespace

json parse_json(std::string_view text, std::string_view origin) {
  Builder builder;
  if (!json::sax_parse(text, &builder))
    throw_bad_input("{}: this is not JSON: {}", excerpt(origin),
                    builder.refusal.empty() ? "it ends early" : builder.refusal);
  return std::move(builder.document);
}

}  // namespace flashcore
