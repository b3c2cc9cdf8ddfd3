"""Tests of rules.py, run by tests/scenarios/user/viz.rs."""

import sys
import unittest

sys.dont_write_bytecode = True

from rules import Refused, read


class Rules(unittest.TestCase):
    def test_pickles_of_the_viewer_are_read(self):
        for content, expected in [
            (b"\x80\x02}X\x01\0\0\0aK\x07s.", 7),
            (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94\x8c\x01a\x94J\xff\xff\xff\xffs.", -1),
            (b"\x80\x02}(X\x01\0\0\0aq\0\x8a\x02\x00\x80X\x01\0\0\0b]h\0au.", -32768),
        ]:
            self.assertEqual(read(content)["a"], expected, content)

    def test_others_are_refused(self):
        for content, why in [
            (b"\x80\x05}X\x01\0\0\0aK\x07s.", "protocol from 2 to 4"),
            (b"}X\x01\0\0\0aK\x07s.", "protocol from 2 to 4"),
            (b"\x80\x02}X\x01\0\0\0aK\x07s}.", "not one value"),
            (b"\x80\x02}X\x01\0\0\0aK\x07s..", "follows the end"),
            (b"\x80\x02}", "ValueError"),
            (b"\x80\x02cbuiltins\nlist\n.", "does not know it"),
            (b"\x80\x02}\x8d\x01\0\0\0\0\0\0\0aK\x07s.", "does not know it"),
            (b"\x80\x02}X\x01\0\0\0ah\x03s.", "memo 3 was never written"),
            (b"\x80\x02}r\x01\x02\0\0.", "memo 513 is too high"),
            (b"\x80\x02}X\x01\0\0\0\xffK\x07s.", "UnicodeDecodeError"),
            (b"\x80\x02}X\x03\0\0\0\xed\xa0\x80K\x07s.", "UnicodeEncodeError"),
            (b"\x80\x02}X\x01\0\0\0a\x8a\x08\0\0\0\0\0\0\0\x7fs.", "no JavaScript number"),
            (b"\x80\x02}X\x01\0\0\0a\x8a\x09\0\0\0\0\0\0\0\0\0s.", "an integer of 9 bytes"),
            (b"\x80\x02}(X\x01\0\0\0au.", "a key without a value"),
            (b"\x80\x02}K\x01K\x02s.", "a key that is no text"),
            (b"\x80\x02}(X\x01\0\0\0aK\x01X\x01\0\0\0aK\x02u.", "a twice"),
            (b"\x80\x02]X\x01\0\0\0aK\x01s.", "not a dict"),
            (b"\x80\x02}K\x01a.", "not a list"),
            (b"\x80\x02}X\xff\0\0\0a", "ValueError"),
            (b"\x80\x02}K\x01u.", ""),
        ]:
            with self.assertRaises(Refused, msg=content) as refused:
                read(content)
            self.assertIn(why, str(refused.exception), content)


if __name__ == "__main__":
    unittest.main()
