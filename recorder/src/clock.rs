//! The recorder's one clock.

/// CLOCK_MONOTONIC in nanoseconds; served by the vDSO, without a system call.
#[inline]
pub(crate) fn mono_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Unix time in nanoseconds.
pub(crate) fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to fill.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
