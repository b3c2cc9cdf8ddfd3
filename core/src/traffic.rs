//! Requests to the bucket of a cluster: their kinds, their rate, and what they cost.
//!
//! The counting is done where requests are sent; this file computes with the counts. The prices are
//! those of a well-known provider, to compare: what a bucket costs is in the contract with its
//! provider, who may also charge for bytes.

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Dollars for a million requests that write or list: PUT, COPY, POST, LIST.
const WRITING_DOLLARS_PER_MILLION: f64 = 5.0;

/// Dollars for a million requests that read: GET, HEAD. Requests that delete cost nothing.
const READING_DOLLARS_PER_MILLION: f64 = 0.4;

/// Time between two samples of the counts, in nanoseconds.
pub const SAMPLE_EVERY_NS: u64 = 10_000_000_000;

/// Samples that are kept: a rate is that of the last minute.
const SAMPLES: usize = 6;

/// Least time over which a rate is computed, in nanoseconds.
const RATE_OVER_NS_MIN: u64 = 1_000_000_000;

const SECONDS_PER_DAY: f64 = 86_400.0;

/// Requests that were sent, by their kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// PUT, and other requests that write, also those whose condition was not met.
    pub puts: u64,
    /// LIST, one for each page.
    pub lists: u64,
    /// GET and HEAD.
    pub gets: u64,
    /// DELETE.
    pub deletes: u64,
}

/// Requests to a bucket, and what as many in each second of a day cost, at these prices. Bytes and
/// DELETE cost nothing here.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RequestRates {
    /// Time over which they were counted, in seconds.
    pub seconds: f64,
    /// All requests.
    pub requests_per_second: f64,
    /// PUT.
    pub puts_per_second: f64,
    /// LIST, one for each page.
    pub lists_per_second: f64,
    /// GET and HEAD.
    pub gets_per_second: f64,
    /// PUT and LIST at `dollars_per_million_writing`, GET and HEAD at
    /// `dollars_per_million_reading`, in dollars.
    pub dollars_per_day: f64,
    /// Price of a million PUT or LIST, in dollars.
    pub dollars_per_million_writing: f64,
    /// Price of a million GET or HEAD, in dollars.
    pub dollars_per_million_reading: f64,
}

/// The counts of the last minute.
#[derive(Clone, Debug, Default)]
pub struct RequestWatch {
    /// Times, on a monotonic clock, and counts; the oldest first.
    samples: VecDeque<(u64, RequestCounts)>,
}

impl RequestCounts {
    /// Each kind by its name, with its count.
    pub fn kinds(self) -> [(&'static str, u64); 4] {
        let Self { puts, lists, gets, deletes } = self;
        [("put", puts), ("list", lists), ("get", gets), ("delete", deletes)]
    }

    /// All requests.
    pub fn all(self) -> u64 {
        self.kinds().into_iter().fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// Those since an earlier count.
    fn since(self, before: Self) -> Self {
        Self {
            puts: self.puts.saturating_sub(before.puts),
            lists: self.lists.saturating_sub(before.lists),
            gets: self.gets.saturating_sub(before.gets),
            deletes: self.deletes.saturating_sub(before.deletes),
        }
    }

    /// What they cost, in dollars.
    pub fn dollars(self) -> f64 {
        let writing = self.puts.saturating_add(self.lists) as f64 * WRITING_DOLLARS_PER_MILLION;
        (writing + self.gets as f64 * READING_DOLLARS_PER_MILLION) / 1e6
    }

    /// As many in each second as these in this time.
    fn over(self, seconds: f64) -> RequestRates {
        let rate = |count: u64| count as f64 / seconds;
        RequestRates {
            seconds,
            requests_per_second: rate(self.all()),
            puts_per_second: rate(self.puts),
            lists_per_second: rate(self.lists),
            gets_per_second: rate(self.gets),
            dollars_per_day: self.dollars() / seconds * SECONDS_PER_DAY,
            dollars_per_million_writing: WRITING_DOLLARS_PER_MILLION,
            dollars_per_million_reading: READING_DOLLARS_PER_MILLION,
        }
    }
}

impl RequestWatch {
    /// Notes the counts, once in each [`SAMPLE_EVERY_NS`].
    pub fn sample(&mut self, now_ns: u64, counts: RequestCounts) {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now_ns, counts));
    }

    /// The rates since the oldest sample; none right after the start.
    pub fn rates(&self, now_ns: u64, counts: RequestCounts) -> Option<RequestRates> {
        let (since_ns, before) = *self.samples.front()?;
        let passed_ns = now_ns.saturating_sub(since_ns);
        let is_long = passed_ns >= RATE_OVER_NS_MIN;
        is_long.then(|| counts.since(before).over(passed_ns as f64 / 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_cost_by_their_kind() {
        let of = |puts, lists, gets, deletes| RequestCounts { puts, lists, gets, deletes };
        for (counts, dollars) in [
            (of(1_000_000, 0, 0, 0), 5.0),
            (of(0, 1_000_000, 0, 0), 5.0),
            (of(0, 0, 1_000_000, 0), 0.4),
            (of(0, 0, 0, 1_000_000), 0.0),
            (of(100_000, 100_000, 1_000_000, 7), 1.4),
        ] {
            assert!((counts.dollars() - dollars).abs() < 1e-9, "{counts:?}");
        }
        assert_eq!((of(1, 2, 3, 4).all(), of(u64::MAX, 1, 0, 0).all()), (10, u64::MAX));
    }

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let mut watch = RequestWatch::default();
        let counts = |puts| RequestCounts { puts, gets: 2 * puts, ..RequestCounts::default() };
        assert_eq!(watch.rates(5, counts(1)), None, "no sample");
        watch.sample(0, counts(1_000));
        assert_eq!(watch.rates(RATE_OVER_NS_MIN - 1, counts(1_001)), None, "too short");
        let short = watch.rates(RATE_OVER_NS_MIN, counts(1_010)).unwrap();
        assert_eq!(
            (short.seconds, short.puts_per_second, short.gets_per_second),
            (1.0, 10.0, 20.0)
        );
        // Much in the first ten seconds, one a second later on.
        for tick in 1..=6 {
            watch.sample(tick * SAMPLE_EVERY_NS, counts(100_000 + 10 * tick));
        }
        let rates = watch.rates(7 * SAMPLE_EVERY_NS, counts(100_070)).unwrap();
        assert_eq!((rates.seconds, rates.puts_per_second), (60.0, 1.0));
        assert_eq!((rates.lists_per_second, rates.requests_per_second), (0.0, 3.0));
        let dollars = (5.0 + 2.0 * 0.4) * 86_400.0 / 1e6;
        assert!((rates.dollars_per_day - dollars).abs() < 1e-9, "{rates:?}");
    }
}
