//! Names of incidents, captures and actions: short, sortable by age, unique over restarts.
//!
//! A name is a prefix and a number in base 32: tenths of a second since 2024, or one more than
//! the last name when that is larger. So a clock that goes back, or a second name within the same
//! tenth, never repeats a name, as long as the names in the store were shown to [`Ids::seen`].

/// Digits without `i`, `l`, `o` and `u`, which people misread (Crockford's base 32).
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Enough for 109 years.
const LENGTH: u32 = 7;

/// 2024-01-01T00:00:00Z, in nanoseconds.
const EPOCH_WALL_NS: i64 = 1_704_067_200_000_000_000;

const TENTH_NS: i64 = 100_000_000;

/// Makes names.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    last: u64,
}

impl Ids {
    /// A name that was given before.
    pub(crate) fn seen(&mut self, id: &str) {
        let digits = id.rsplit('-').next().unwrap_or_default();
        let number = digits.bytes().try_fold(0_u64, |sum, digit| {
            let value = DIGITS.iter().position(|known| *known == digit)?;
            sum.checked_mul(32)?.checked_add(value as u64)
        });
        self.last = self.last.max(number.unwrap_or(0));
    }

    /// The next name, such as `cap-0k3f9a2`.
    pub(crate) fn next(&mut self, wall_ns: i64, prefix: &str) -> String {
        let tenths = u64::try_from((wall_ns - EPOCH_WALL_NS) / TENTH_NS).unwrap_or(0);
        self.last = tenths.max(self.last + 1);
        let digits = (0..LENGTH).rev().map(|place| {
            let digit = (self.last >> (5 * place)) & 31;
            char::from(DIGITS[digit as usize])
        });
        format!("{prefix}-{}", digits.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_new_over_restarts_and_clocks_that_go_back() {
        let mut ids = Ids::default();
        let now = EPOCH_WALL_NS + 12_345 * TENTH_NS;
        let first = ids.next(now, "inc");
        assert_eq!(first, "inc-0000c1s");
        assert_eq!(ids.next(now, "inc"), "inc-0000c1t");
        assert_eq!(ids.next(now - TENTH_NS, "cap"), "cap-0000c1v");
        assert_eq!(ids.next(now + 10 * TENTH_NS, "cap"), "cap-0000c23");
        let mut restarted = Ids::default();
        restarted.seen("cap-0000c23");
        restarted.seen("not a name");
        assert_eq!(restarted.next(now, "inc"), "inc-0000c24");
        assert_eq!(Ids::default().next(0, "inc"), "inc-0000001");
    }
}
