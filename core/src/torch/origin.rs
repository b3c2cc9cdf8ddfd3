//! What Memtape's own exports say of themselves, under the key `memtape`: whose they are, where
//! their steps end, and whether their segments are made up.
//!
//! Files of PyTorch say nothing of that; everything is unknown there.

use alloc::format;
use alloc::vec::Vec;

use crate::pickle::torch::{SettingValue, TorchSnapshot};

/// Bytes that a device reserves, where the file's segments are made up around its blocks.
pub(crate) fn reserved_without_segments(snapshot: &TorchSnapshot, device: u32) -> Option<u64> {
    let made_up = value(snapshot, &format!("devices.{device}.segments_made_up"))?;
    (made_up == SettingValue::Bool(true))
        .then(|| number(snapshot, &format!("devices.{device}.reserved")).unwrap_or(0))
}

/// Ends of the device's steps, in order: steps finished, and the number of the event behind it.
pub(crate) fn step_ends(snapshot: &TorchSnapshot, device: u32) -> Vec<(u64, u32)> {
    let prefix = format!("devices.{device}.step_ends.");
    let one = |setting: &crate::pickle::torch::Setting| {
        let finished = setting.name.strip_prefix(prefix.as_str())?.parse().ok()?;
        let SettingValue::Int(event) = setting.value else { return None };
        Some((finished, u32::try_from(event).ok()?))
    };
    let mut ends: Vec<(u64, u32)> = snapshot.origin.iter().filter_map(one).collect();
    ends.sort_unstable_by_key(|&(finished, event)| (event, finished));
    ends
}

fn value(snapshot: &TorchSnapshot, name: &str) -> Option<SettingValue> {
    snapshot.origin.iter().find(|setting| setting.name == name).map(|setting| setting.value)
}

/// The number under this key.
pub(crate) fn number(snapshot: &TorchSnapshot, name: &str) -> Option<u64> {
    match value(snapshot, name)? {
        SettingValue::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// The text under this key.
pub(crate) fn text<'a>(snapshot: &'a TorchSnapshot, name: &str) -> Option<&'a str> {
    match value(snapshot, name)? {
        SettingValue::Text(text) => Some(snapshot.text(text)),
        _ => None,
    }
}

/// The rank that a file names; none in PyTorch's own files.
pub fn rank(snapshot: &TorchSnapshot) -> Option<u32> {
    number(snapshot, "rank").and_then(|rank| rank.try_into().ok())
}
