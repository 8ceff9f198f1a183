"""An enum whose values have words (core/words.h) has one for each value: the compiler does not ask that of a table."""

import os
import re
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("FLASHCORE_SOURCE_DIR", Path(__file__).resolve().parents[2]))


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def enumerators(body):
    return re.findall(r"\b(k\w+)\s*(?:=[^,]*)?(?:,|$)", without_comments(body).strip())


def enums_and_tables(text):
    """{enum: (its values, those of its table)} of one file, for each WordsOf<enum> in it."""
    text = without_comments(text)
    enums = {name: enumerators(body) for name, body in re.findall(r"enum class (\w+)[^{;]*\{(.*?)\}", text, re.DOTALL)}
    tables = re.findall(r"struct WordsOf<(\w+)> \{.*?table\[\] = \{(.*?)\};", text, re.DOTALL)
    return {name: (enums.get(name), re.findall(rf"\b{name}::(k\w+)", body)) for name, body in tables}


class WordsTest(unittest.TestCase):
    def test_every_value_has_one(self):
        sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.h"))}
        everywhere = {}
        for text in sources.values():
            for name, body in re.findall(r"enum class (\w+)[^{;]*\{(.*?)\}", without_comments(text), re.DOTALL):
                everywhere.setdefault(name, enumerators(body))
        found = 0
        for path, text in sources.items():
            for name, (values, worded) in enums_and_tables(text).items():
                found += 1
                with self.subTest(enum=name, file=str(path.relative_to(ROOT))):
                    self.assertEqual(sorted(worded), sorted(values or everywhere[name]))
        self.assertGreater(found, 10)

    def test_one_that_is_missing_is_seen(self):
        text = """
        enum class Side { kLeft, kRight = 4,  // kOld, which was
                          kNone };
        template <> struct WordsOf<Side> {
          static constexpr std::pair<Side, std::string_view> table[] = {{Side::kLeft, "left"}, {Side::kNone, ""}};
        };"""
        self.assertEqual(enums_and_tables(text), {"Side": (["kLeft", "kRight", "kNone"], ["kLeft", "kNone"])})


if __name__ == "__main__":
    unittest.main()
