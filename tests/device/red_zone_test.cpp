#include "device/red_zone.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "core/dtype.h"
#include "device/device.h"

namespace flashcore {
namespace {

// A key read from beyond a tensor shows in the result whatever its weight, 0 included.
TEST(RedZone, IsNanInEveryDtype) {
  std::array<std::byte, 4096> zone;
  for (std::size_t i = 0; i < zone.size(); ++i) zone[i] = red_zone_byte(i);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    for (std::size_t i = 0; i < zone.size() / size_of(dtype); ++i)
      ASSERT_TRUE(std::isnan(load_element(dtype, zone.data(), static_cast<std::int64_t>(i)))) << i;
}

// Of 8 bits every second one: a byte that is NaN in both types has three values and a sign.
TEST(RedZone, EverySecondByteIsNanInEightBits) {
  std::array<std::byte, 4096> zone;
  for (std::size_t i = 0; i < zone.size(); ++i) zone[i] = red_zone_byte(i);
  for (const DType dtype : {DType::kE4M3, DType::kE5M2})
    for (std::size_t i = 1; i < zone.size(); i += 2)
      ASSERT_TRUE(std::isnan(load_element(dtype, zone.data(), static_cast<std::int64_t>(i)))) << i;
}

TEST(RedZone, DiffersFromPlaceToPlace) {
  std::set<std::byte> values;
  for (std::size_t i = 0; i < 254; i += 2) values.insert(red_zone_byte(i));
  EXPECT_EQ(values.size(), 127u);
}

TEST(RedZone, IsWhatSurroundsABuffer) {
  const auto device = open_device("cpu");
  const auto buffer = device->allocate(100, 64);
  const auto* begin = static_cast<const std::byte*>(buffer->data());
  EXPECT_EQ(begin[100], red_zone_byte(256 + 100));  // counted from the start of the zone before it
  EXPECT_EQ(begin[101], red_zone_byte(256 + 101));
  EXPECT_EQ(begin[-1], red_zone_byte(255));  // zones are multiples of 256 bytes
  EXPECT_TRUE(buffer->red_zones_intact());
  static_cast<std::byte*>(buffer->data())[100] = std::byte{0xFF};
  EXPECT_FALSE(buffer->red_zones_intact());
}

}  // namespace
}  // namespace flashcore
