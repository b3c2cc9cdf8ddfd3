//! Names of incidents, captures and actions: short, sortable by age, unique over restarts.
//!
//! The coordinator's name is a prefix and a number in base 32: tenths of a second since 2024, or
//! one more than the last name when that is larger. So a clock that goes back, or a second name
//! within the same tenth, never repeats a name, as long as the names in the store were shown to
//! [`Ids::seen`]. Of a cluster's shards each has the numbers with its own remainder, so that no two
//! coordinators give one name, and a name leads to its shard. The name of an agent-initiated
//! capture has the same time, so that both sort together, and a hash instead of a memory of earlier
//! names.

use alloc::format;
use alloc::string::String;

/// Digits without `i`, `l`, `o` and `u`, which people misread (Crockford's base 32).
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Enough for 109 years.
const LENGTH: u32 = 7;

/// 2024-01-01T00:00:00Z, in nanoseconds.
const EPOCH_WALL_NS: i64 = 1_704_067_200_000_000_000;

const TENTH_NS: i64 = 100_000_000;

/// Kind of the object that an id names: the first part of the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `inc-…`
    Incident,
    /// `cap-…`
    Capture,
    /// `act-…`
    Action,
}

impl Kind {
    /// Kind of the object with this id; none for a text that is no id.
    pub fn of(name: &str) -> Option<Self> {
        let (prefix, _) = name.split_once('-')?;
        let all = [Self::Incident, Self::Capture, Self::Action];
        all.into_iter().find(|of| of.prefix() == prefix)
    }

    /// Kind of the object with an id from [`Ids`]; none for other texts, even with a known prefix.
    pub fn of_given(name: &str) -> Option<Self> {
        let (_, number) = name.split_once('-')?;
        let is_number =
            number.len() == LENGTH as usize && number.bytes().all(|digit| DIGITS.contains(&digit));
        is_number.then(|| Self::of(name)).flatten()
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Incident => "inc",
            Self::Capture => "cap",
            Self::Action => "act",
        }
    }
}

/// Last part of an agent-initiated capture's name.
const AGENT_SUFFIX: &str = "-alone";

/// Longest accepted name of an agent-initiated capture, in bytes.
const AGENT_CAPTURE_BYTES_MAX: usize = 64;

/// Makes names.
#[derive(Clone, Debug)]
pub struct Ids {
    last: u64,
    shard: u64,
    shards: u64,
}

impl Default for Ids {
    fn default() -> Self {
        Self::of_shard(0, 1)
    }
}

impl Ids {
    /// Names of one shard, of this many.
    pub fn of_shard(shard: u16, shards: u16) -> Self {
        Self { last: 0, shard: shard.into(), shards: shards.max(1).into() }
    }

    /// Notes an id that was given before.
    pub fn seen(&mut self, id: &str) {
        self.last = self.last.max(number(id).unwrap_or(0));
    }

    /// The next name, such as `cap-0k3f9a2`.
    pub fn next(&mut self, wall_ns: i64, kind: Kind) -> String {
        let least = tenths(wall_ns).max(self.last + 1);
        self.last = least + (self.shard + self.shards - least % self.shards) % self.shards;
        format!("{}-{}", kind.prefix(), digits(self.last))
    }
}

/// The shard whose coordinator gave this id, of this many; none for other texts.
pub fn shard_of_id(id: &str, shards: u16) -> Option<u16> {
    Kind::of_given(id)?;
    u16::try_from(number(id)? % u64::from(shards.max(1))).ok()
}

/// The number in the last part of a name.
fn number(id: &str) -> Option<u64> {
    let digits = id.rsplit('-').next().unwrap_or_default();
    digits.bytes().try_fold(0_u64, |sum, digit| {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        sum.checked_mul(32)?.checked_add(value as u64)
    })
}

/// The name of an agent-initiated capture, such as `cap-0k3f9a2-0123456789-alone`. `unique` is a
/// hash of the capture's subject, in lower-case hexadecimal digits; ten of them are used.
pub fn agent_capture(wall_ns: i64, unique: &str) -> String {
    let unique = unique.get(..10).unwrap_or(unique);
    let capture = Kind::Capture.prefix();
    format!("{capture}-{}-{unique}{AGENT_SUFFIX}", digits(tenths(wall_ns)))
}

/// True for names that [`agent_capture`] makes; a coordinator's own never end like this.
pub fn is_agent_capture(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= AGENT_CAPTURE_BYTES_MAX
        && Kind::of(name) == Some(Kind::Capture)
        && name.ends_with(AGENT_SUFFIX)
        && name.bytes().all(is_plain)
}

fn tenths(wall_ns: i64) -> u64 {
    u64::try_from(wall_ns.saturating_sub(EPOCH_WALL_NS) / TENTH_NS).unwrap_or(0)
}

fn digits(number: u64) -> String {
    let digit = |place: u32| char::from(DIGITS[((number >> (5 * place)) & 31) as usize]);
    (0..LENGTH).rev().map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_new_over_restarts_and_clocks_that_go_back() {
        let mut ids = Ids::default();
        let now = EPOCH_WALL_NS + 12_345 * TENTH_NS;
        let first = ids.next(now, Kind::Incident);
        assert_eq!(first, "inc-0000c1s");
        assert_eq!(ids.next(now, Kind::Incident), "inc-0000c1t");
        assert_eq!(ids.next(now - TENTH_NS, Kind::Capture), "cap-0000c1v");
        assert_eq!(ids.next(now + 10 * TENTH_NS, Kind::Capture), "cap-0000c23");
        let mut restarted = Ids::default();
        restarted.seen("cap-0000c23");
        restarted.seen("not a name");
        assert_eq!(restarted.next(now, Kind::Incident), "inc-0000c24");
        assert_eq!(Ids::default().next(0, Kind::Incident), "inc-0000001");
    }

    #[test]
    fn shards_that_give_ids_in_one_tenth_give_none_twice() {
        for shards in [1, 2, 3, 7, 64] {
            let mut given = alloc::collections::BTreeSet::new();
            for shard in 0..shards {
                let (mut ids, mut last) = (Ids::of_shard(shard, shards), String::new());
                for _ in 0..20 {
                    let id = ids.next(EPOCH_WALL_NS + 12_345 * TENTH_NS, Kind::Incident);
                    assert!(id > last, "{id} after {last}");
                    assert_eq!(shard_of_id(&id, shards), Some(shard), "{id} of {shards}");
                    last.clone_from(&id);
                    assert!(given.insert(id), "{last} of {shards} is given twice");
                }
                let mut restarted = Ids::of_shard(shard, shards);
                restarted.seen(&last);
                let next = restarted.next(0, Kind::Incident);
                assert!(next > last && shard_of_id(&next, shards) == Some(shard), "{next}");
            }
        }
        for other in ["cap-0000c1s-0123456789-alone", "act-of-memory", "", "inc-"] {
            assert_eq!(shard_of_id(other, 4), None, "{other}");
        }
    }

    #[test]
    fn a_name_with_a_known_prefix_is_not_an_id() {
        let given = Ids::default().next(EPOCH_WALL_NS, Kind::Action);
        assert_eq!(Kind::of_given(&given), Some(Kind::Action));
        for name in
            ["act-of-memory", "act-0000c1", "act-0000c1ss", "act-0000c1u", "act", "in-0000c1s"]
        {
            assert_eq!(Kind::of_given(name), None, "{name}");
        }
    }

    #[test]
    fn captures_of_agents_and_coordinator_sort_by_time() {
        let now = EPOCH_WALL_NS + 12_345 * TENTH_NS;
        let name = agent_capture(now, "0123456789abcdef");
        assert_eq!(name, "cap-0000c1s-0123456789-alone");
        assert!(name.as_str() > "cap-0000c1s" && name.as_str() < "cap-0000c1t");
        assert!(is_agent_capture(&name) && !is_agent_capture("cap-0000c1s"));
        assert!(agent_capture(0, "0123456789").starts_with("cap-0000000-"));
    }
}
