//! Tests of the store and what they need: a simulated disk, crash tests, damage, a full disk.

#[cfg(test)]
mod backup;
#[cfg(test)]
mod basics;
#[cfg(feature = "bench")]
pub(crate) mod bench;
#[cfg(test)]
mod clock_jumps;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod journal_damage;
#[cfg(test)]
mod kill;
#[cfg(test)]
#[cfg(test)]
mod remote;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod simulated;
pub(crate) mod turns;
#[cfg(test)]
mod vanished;
