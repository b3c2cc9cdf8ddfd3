//! Which shard a job is in, and when a coordinator may try to own a shard.
//!
//! A shard is a part of a cluster's jobs, by a hash of their names. Agents and coordinators compute
//! it from the name alone, so the hash never changes.
//!
//! The owner of a shard renews a hint. A watcher reads its version again and again. On its own
//! monotonic clock, a hint whose version stays the same for [`HINT_LASTS_NS`] was left by its
//! owner. No two machines compare clocks, and a wrong decision costs a takeover, never a record:
//! the fence of the shard decides who owns it. An owner acts on a proof of its ownership that it
//! began shortly before. Where the hint lies is not known here.

use alloc::string::String;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::ACTION_PROOF_SECONDS_MAX;

/// Most shards of a cluster.
pub const SHARDS_MAX: u16 = 64;

/// Time between two renewals by the owner, and between two reads by a watcher, in nanoseconds.
pub const HINT_EVERY_NS: u64 = 1_000_000_000;

/// Time without a change after which a hint was left, in nanoseconds.
pub const HINT_LASTS_NS: u64 = 5 * HINT_EVERY_NS;

/// Requests in a row that taking a shard takes, about, with the replay of a quiet shard.
pub const OPENING_REQUESTS: u32 = 29;

/// Longest URL of a coordinator, in bytes.
const ADDRESS_BYTES_MAX: usize = 256;

/// The contents of a hint.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Owner {
    /// Name of the coordinator's process; never the same twice.
    pub process: String,
    /// Where agents and people reach it.
    pub address: String,
    /// Epoch of its ownership; of the one before, until it has one.
    pub epoch: u64,
    /// True when it gave the shard up: the next owner need not wait.
    pub has_left: bool,
    /// Renewals so far.
    pub renewals: u64,
}

impl Owner {
    /// Its URL, else the name of its process, where the hint has no URL of a coordinator.
    pub fn shown(&self) -> &str {
        if self.address.is_empty() { &self.process } else { &self.address }
    }
}

/// The URL of a coordinator, by its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// With TLS?
    pub is_https: bool,
    /// Its name or IP address, that of IPv6 without brackets.
    pub host: &'a str,
}

impl<'a> Address<'a> {
    /// Reads `SCHEME://HOST:PORT`; none where the URL has anything else, or is too long.
    pub fn parse(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://").filter(|_| url.len() <= ADDRESS_BYTES_MAX)?;
        let is_https = match scheme {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let (host, port) = rest.rsplit_once(':')?;
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_host = match in_brackets {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_of_name),
        };
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port > 0);
        (is_host && is_port).then_some(Self { is_https, host: in_brackets.unwrap_or(host) })
    }

    /// Does it lead to all interfaces, to which no client can connect?
    pub fn is_unspecified(self) -> bool {
        self.host.parse().is_ok_and(|address: IpAddr| address.is_unspecified())
    }

    /// Does it lead every machine to itself?
    pub fn is_loopback(self) -> bool {
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        self.host.eq_ignore_ascii_case("localhost") || self.host.parse().is_ok_and(is_loopback)
    }
}

/// One of the parts into which a cluster divides its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobsShard {
    /// Number of the shard, from 0.
    pub shard: u16,
    /// Number of shards.
    pub shards: u16,
}

/// The shard of a job, of this many shards: FNV-1a of its name, scaled. 0 where there is one shard.
pub fn shard_of(job: &str, shards: u16) -> u16 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = job.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold);
    // The upper bits of FNV hardly change with the last byte of a name.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((mixed * u64::from(shards.max(1))) >> 32) as u16
}

/// What a watcher has seen of a hint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintWatch {
    /// The newest version, and the time at which it was seen first.
    seen: Option<(String, u64)>,
}

impl HintWatch {
    /// Notes the version that was read now, none if there is no hint. May the hint be claimed?
    pub fn may_claim(&mut self, now_ns: u64, version: Option<&str>) -> bool {
        let Some(version) = version else {
            self.seen = None;
            return true;
        };
        match &self.seen {
            Some((seen, since_ns)) if seen == version => {
                now_ns.saturating_sub(*since_ns) >= HINT_LASTS_NS
            }
            _ => {
                self.seen = Some((version.into(), now_ns));
                false
            }
        }
    }

    /// The hint could not be read: whether it changed meanwhile is not known.
    pub fn missed(&mut self) {
        self.seen = None;
    }
}

/// A proof that this process owned its store at some time after the proof was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    begun_ns: u64,
}

impl Proof {
    /// The proof that was begun at this time, on a clock that goes on while the process is stopped.
    pub fn new(begun_ns: u64) -> Self {
        Self { begun_ns }
    }

    /// May a request that rests on the proof begin now? Not later: the process may have been
    /// stopped, and the store be another's.
    pub fn holds(self, now_ns: u64) -> bool {
        self.left(now_ns).is_some()
    }

    /// Time for which the proof still holds; none when it holds no more.
    pub fn left(self, now_ns: u64) -> Option<Duration> {
        let held_ns = now_ns.saturating_sub(self.begun_ns);
        Duration::from_secs(ACTION_PROOF_SECONDS_MAX).checked_sub(Duration::from_nanos(held_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_of_a_name_never_changes() {
        let known = [
            ("", 8, 4),
            ("train", 1, 0),
            ("train", 0, 0),
            ("train", 8, 3),
            ("llama", 8, 4),
            ("llama-70b-run-1", 64, 37),
            ("llama-70b-run-2", 64, 58),
        ];
        for (job, shards, expected) in known {
            assert_eq!(shard_of(job, shards), expected, "{job:?} of {shards}");
        }
    }

    #[test]
    fn the_url_of_a_coordinator_has_a_scheme_a_host_and_a_port() {
        for (url, is_https, host) in [
            ("https://one:7771", true, "one"),
            ("http://10.0.0.1:1", false, "10.0.0.1"),
            ("https://[fd00::1]:65535", true, "fd00::1"),
            ("http://a_b.ns.svc.cluster.local:7771", false, "a_b.ns.svc.cluster.local"),
        ] {
            assert_eq!(Address::parse(url), Some(Address { is_https, host }), "{url}");
        }
        let long = alloc::format!("http://{}:1", "a".repeat(ADDRESS_BYTES_MAX));
        for url in [
            "",
            "one:7771",
            "ftp://one:7771",
            "HTTP://one:7771",
            "https://one",
            "https://:7771",
            "https://one:0",
            "https://one:65536",
            "https://one:+1",
            "https://one:",
            "https://user@one:7771",
            "https://user:pass@one:7771",
            "https://one:7771/",
            "https://one:7771/path",
            "https://one?x=:1",
            "https://one/x:1",
            "https://one#:1",
            "https://one:7771,https://two:7771",
            "https://on e:1",
            "https://one\n:1",
            "https://[one]:1",
            "https://fd00::1:7771",
            "https://\u{f6}ne:1",
            &long,
        ] {
            assert_eq!(Address::parse(url), None, "{url:?}");
        }
    }

    #[test]
    fn urls_that_lead_nowhere_or_to_the_reader_are_seen() {
        let is = |url: &str| {
            Address::parse(url).map(|address| (address.is_unspecified(), address.is_loopback()))
        };
        for url in ["http://0.0.0.0:1", "http://[::]:1"] {
            assert_eq!(is(url), Some((true, false)), "{url}");
        }
        for host in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "LocalHost"] {
            assert_eq!(is(&alloc::format!("http://{host}:1")), Some((false, true)), "{host}");
        }
        assert_eq!(is("http://10.0.0.1:1"), Some((false, false)));
    }

    #[test]
    fn names_in_sequence_are_spread() {
        for shards in [2_u16, 3, 8, 64] {
            let mut jobs = alloc::vec![0_u32; usize::from(shards)];
            for number in 0..6_400 {
                let shard = shard_of(&alloc::format!("llama-70b-run-{number}"), shards);
                jobs[usize::from(shard)] += 1;
            }
            let expected = 6_400 / u32::from(shards);
            let is_near = |of: &u32| (expected / 2..=expected * 2).contains(of);
            assert!(jobs.iter().all(is_near), "{shards}: {jobs:?}");
        }
    }

    #[test]
    fn a_hint_is_claimed_when_it_was_not_renewed_for_its_time() {
        let mut watch = HintWatch::default();
        assert!(watch.may_claim(0, None));
        for now_ns in (0..100).map(|tick| tick * HINT_EVERY_NS) {
            let version = alloc::format!("{now_ns}");
            assert!(!watch.may_claim(now_ns, Some(&version)), "renewed each time");
        }
        let left_ns = 100 * HINT_EVERY_NS;
        assert!(!watch.may_claim(left_ns, Some("last")));
        assert!(!watch.may_claim(left_ns + HINT_LASTS_NS - 1, Some("last")));
        assert!(watch.may_claim(left_ns + HINT_LASTS_NS, Some("last")));
        watch.missed();
        assert!(!watch.may_claim(left_ns + HINT_LASTS_NS, Some("last")), "it begins again");
    }

    #[test]
    fn a_proof_holds_for_its_time_and_less_than_a_hint() {
        let lasts_ns = ACTION_PROOF_SECONDS_MAX * 1_000_000_000;
        assert!(lasts_ns < HINT_LASTS_NS);
        let proof = Proof::new(7);
        assert!(proof.holds(7) && proof.holds(7 + lasts_ns));
        assert!(!proof.holds(8 + lasts_ns) && !proof.holds(u64::MAX));
    }
}
