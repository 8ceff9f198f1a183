#include "core/band.h"

#include <gtest/gtest.h>

#include <vector>

namespace flashcore {
namespace {

// The definition, key by key.
bool sees(const Band<int>& band, int row, int key) {
  return key >= 0 && key < band.seqlen_kv && (!band.bounded_left || key >= row + band.left_offset) &&
         (!band.bounded_right || key <= row + band.right_offset);
}

std::vector<Band<int>> bands() {
  std::vector<Band<int>> all;
  for (const int keys : {0, 1, 7, 12}) {
    for (const bool left : {false, true}) {
      for (const bool right : {false, true}) {
        for (int left_offset = -15; left_offset <= 15; left_offset += left ? 3 : 100) {
          for (int width = 1; width <= 9; width += right ? 2 : 100)
            all.push_back({keys, left, right, left_offset, left_offset + width - 1});
        }
      }
    }
  }
  return all;
}

TEST(BandTest, ARowsKeysAreThoseThatItSees) {
  for (const Band<int>& band : bands()) {
    for (int row = 0; row < 12; ++row) {
      const KeyRange<int> keys = band.keys_of_row(row);
      ASSERT_LE(0, keys.begin);
      ASSERT_LE(keys.begin, keys.end);
      ASSERT_LE(keys.end, band.seqlen_kv);
      EXPECT_EQ(keys.empty(), keys.size() == 0);
      for (int key = -2; key < band.seqlen_kv + 2; ++key) ASSERT_EQ(keys.contains(key), sees(band, row, key));
    }
  }
}

TEST(BandTest, ABlockIsSkippedFullOrCutByWhatItsRowsSee) {
  bool met[3] = {};
  for (const Band<int>& band : bands()) {
    for (int first = 0; first < 10; first += 3) {
      for (int last = first; last < first + 5; ++last) {
        for (int begin = 0; begin < band.seqlen_kv; begin += 4) {
          const int end = begin + 4;  // past the last key, too: what is beyond it nobody sees
          int seen = 0;
          for (int row = first; row <= last; ++row)
            for (int key = begin; key < end; ++key) seen += sees(band, row, key) ? 1 : 0;
          const BlockUse expected = seen == 0                                    ? BlockUse::kSkip
                                    : seen == (last - first + 1) * (end - begin) ? BlockUse::kFull
                                                                                 : BlockUse::kCut;
          ASSERT_EQ(band.use_of(first, last, begin, end), expected)
              << band.seqlen_kv << ' ' << band.left_offset << ' ' << band.right_offset << ' ' << first << ' ' << last
              << ' ' << begin;
          met[static_cast<int>(expected)] = true;
        }
      }
    }
  }
  EXPECT_TRUE(met[0] && met[1] && met[2]);
}

TEST(BandTest, IsConstant) {
  constexpr Band<int> kCausal{8, false, true, 0, 0};
  static_assert(kCausal.keys_of_row(3) == KeyRange<int>{0, 4});
  static_assert(kCausal.use_of(0, 3, 4, 8) == BlockUse::kSkip);
  static_assert(kCausal.use_of(4, 7, 0, 4) == BlockUse::kFull);
  // Offsets that the other bound does not use are not added up.
  constexpr Band<int> kFree{8, false, false, 2147483647, 2147483647};
  static_assert(kFree.keys_of_any(0, 100) == KeyRange<int>{0, 8});
}

}  // namespace
}  // namespace flashcore
