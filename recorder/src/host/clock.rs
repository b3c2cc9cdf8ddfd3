//! Time on the hot path: the processor's own counter, turned into CLOCK_MONOTONIC.
//!
//! The system's clock costs twice as much as the counter it is made from. So the recorder keeps a
//! line of its own through (counter, clock), and every second or two changes its slope towards the
//! system's clock, so that time never steps back. The counters of two cores may differ, so two
//! threads may see times microseconds out of order; on a lane the positions give the order. Where
//! the counter is not the kernel's own clock source, or is not invariant, the system is asked.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Beyond this difference the line is set again: the machine was suspended.
const JUMP_NS: i64 = 5_000_000;

/// Time after which a corrected line meets the system's clock.
const CORRECTION_NS: i64 = 2_000_000_000;

/// Bits behind the point in `Line::rate`: nanoseconds a tick.
const RATE_BITS: u32 = 32;

/// `ns = base_ns + (ticks - base_ticks) * rate`, on one cache line.
#[repr(align(64))]
struct Line {
    /// Odd while the line is being changed, and before there is one.
    version: AtomicU64,
    base_ticks: AtomicU64,
    base_ns: AtomicU64,
    rate: AtomicU64,
}

static LINE: Line = Line {
    version: AtomicU64::new(1),
    base_ticks: AtomicU64::new(0),
    base_ns: AtomicU64::new(0),
    rate: AtomicU64::new(0),
};

/// CLOCK_MONOTONIC in nanoseconds, as the hot path has it.
#[inline(always)]
pub(crate) fn mono_ns() -> u64 {
    shown_at(None).unwrap_or_else(system_mono_ns)
}

/// The line's time at a reading of the counter, by default now's. `None` before there is a line and
/// while it changes.
#[inline(always)]
fn shown_at(at: Option<u64>) -> Option<u64> {
    let version = LINE.version.load(Ordering::Acquire);
    let shown = on_line(
        at.unwrap_or_else(ticks),
        LINE.base_ticks.load(Ordering::Relaxed),
        LINE.base_ns.load(Ordering::Relaxed),
        LINE.rate.load(Ordering::Relaxed),
    );
    fence(Ordering::Acquire);
    let is_whole = version & 1 == 0 && LINE.version.load(Ordering::Relaxed) == version;
    is_whole.then_some(shown)
}

#[inline]
fn on_line(ticks: u64, base_ticks: u64, base_ns: u64, rate: u64) -> u64 {
    // Another core's counter may be behind the one that set the line.
    let passed = ticks.saturating_sub(base_ticks);
    base_ns.wrapping_add(((u128::from(passed) * u128::from(rate)) >> RATE_BITS) as u64)
}

/// A reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Both {
    ticks: u64,
    ns: u64,
}

impl Both {
    pub(crate) fn now() -> Self {
        // The best of three, in case the thread was descheduled between two readings.
        let each = || {
            let before = ticks();
            let ns = system_mono_ns();
            let after = ticks();
            (after.wrapping_sub(before), Self { ticks: before.midpoint(after), ns })
        };
        [each(), each(), each()]
            .into_iter()
            .min_by_key(|(width, _)| *width)
            .map_or(Self { ticks: 0, ns: 0 }, |(_, both)| both)
    }
}

/// Sets the first line, if the counter can be trusted. `earlier` is a reading some milliseconds
/// old.
pub(crate) fn start(earlier: Both) {
    let now = Both::now();
    let rate = rate_between(earlier, now);
    if counter_is_the_clock() && rate > 0 {
        set_line(now.ticks, now.ns, rate);
    }
}

/// Corrects the line towards the system's clock; the control thread calls it every second or two.
/// `since` is a reading from the start: the older, the better the rate.
pub(crate) fn correct(since: Both) {
    let now = Both::now();
    let rate = rate_between(since, now);
    if rate == 0 {
        return;
    }
    let Some(shown) = shown_at(Some(now.ticks)) else { return };
    let off = (now.ns as i64).wrapping_sub(shown as i64);
    if off.abs() > JUMP_NS {
        set_line(now.ticks, now.ns, rate);
        return;
    }
    // The line continues from its present value and meets the clock after CORRECTION_NS.
    let corrected = i128::from(rate) * i128::from(CORRECTION_NS + off) / i128::from(CORRECTION_NS);
    set_line(now.ticks, shown, u64::try_from(corrected).unwrap_or(rate));
}

/// Sets the line. Called by one thread at a time: the waking thread, then the control thread.
fn set_line(base_ticks: u64, base_ns: u64, rate: u64) {
    let version = LINE.version.load(Ordering::Relaxed) | 1;
    LINE.version.store(version, Ordering::Relaxed);
    fence(Ordering::Release);
    LINE.base_ticks.store(base_ticks, Ordering::Relaxed);
    LINE.base_ns.store(base_ns, Ordering::Relaxed);
    LINE.rate.store(rate, Ordering::Relaxed);
    LINE.version.store(version.wrapping_add(1), Ordering::Release);
}

/// Nanoseconds a tick; 0 when the readings are too close to tell.
fn rate_between(first: Both, second: Both) -> u64 {
    const TICKS_MIN: u64 = 100_000;
    let (ticks, ns) =
        (second.ticks.saturating_sub(first.ticks), second.ns.saturating_sub(first.ns));
    if ticks < TICKS_MIN {
        return 0;
    }
    u64::try_from((u128::from(ns) << RATE_BITS) / u128::from(ticks)).unwrap_or(0)
}

/// True when the kernel itself uses the counter as its clock source, and the counter's rate is
/// constant.
#[cfg(target_arch = "x86_64")]
fn counter_is_the_clock() -> bool {
    const POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    let has_leaf = std::arch::x86_64::__cpuid(0x8000_0000).eax >= POWER;
    let invariant = has_leaf && std::arch::x86_64::__cpuid(POWER).edx & INVARIANT != 0;
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    invariant && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(not(target_arch = "x86_64"))]
fn counter_is_the_clock() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: reads a register; every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// CLOCK_MONOTONIC in nanoseconds, from the system.
#[cold]
pub(crate) fn system_mono_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Unix time in nanoseconds.
pub(crate) fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is the call's own.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_readings() {
        // 2.5 GHz: 0.4 ns a tick.
        let (first, second) =
            (Both { ticks: 1000, ns: 77 }, Both { ticks: 1000 + 2_500_000, ns: 77 + 1_000_000 });
        let rate = rate_between(first, second);
        assert_eq!(on_line(1000, 1000, 77, rate), 77);
        assert!(on_line(1000 + 2_500_000_000, 1000, 77, rate).abs_diff(1_000_000_077) <= 1);
        assert_eq!(on_line(10, 1000, 77, rate), 77, "a counter that is behind stands still");
        assert_eq!(rate_between(first, Both { ticks: 1001, ns: 78 }), 0);
    }

    #[test]
    fn corrections_keep_order_and_reach_the_clock() {
        let since = Both::now();
        std::thread::sleep(std::time::Duration::from_millis(20));
        start(since);
        let mut last = mono_ns();
        for _ in 0..50 {
            correct(since);
            for _ in 0..1000 {
                let now = mono_ns();
                assert!(now >= last, "time went back by {}", last - now);
                last = now;
            }
        }
        let (before, shown, after) = (system_mono_ns(), mono_ns(), system_mono_ns());
        let off = if shown < before { before - shown } else { shown.saturating_sub(after) };
        assert!(off < 1_000_000, "off by {off} ns");
    }
}
