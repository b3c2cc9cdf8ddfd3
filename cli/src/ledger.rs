//! Where a device's bytes are, as `memtape tape` shows it: core's ledger, from the tape and, while
//! its process lives on a node with NVML, from the driver.

use memtape_core::ledger::{Amount, Ledger, Name, Sources};
use memtape_core::snapshot::{OutsideUse, RankSnapshot};
use serde_json::{Value, json};

use crate::liveness::Writer;
use crate::render::{bytes, signed_bytes, table};

/// The ledger of one device at the moment of a snapshot.
pub(crate) fn of(state: &RankSnapshot, device: u8, device_bytes: u64, writer: Writer) -> Ledger {
    let allocator = state.devices.iter().find(|of| of.device == device);
    let is_here = |taken: &&OutsideUse| taken.origin.is_on_device() && taken.device == device;
    let outside: Vec<OutsideUse> = state.outside.iter().filter(is_here).copied().collect();
    let uuid = allocator.map_or("", |of| of.uuid.as_str());
    let driver = match writer {
        Writer::Alive(Some(pid)) => memtape_agent::gpu_use(uuid, pid),
        _ => None,
    };
    let known = |size: u64| Some(size).filter(|&size| size > 0);
    Ledger::of(&Sources {
        device_bytes: driver.map(|gpu| gpu.total_bytes).or(known(device_bytes)),
        free_bytes: driver.map(|gpu| gpu.free_bytes),
        process_bytes: driver.and_then(|gpu| gpu.process_bytes),
        allocator,
        outside: Some(&outside),
    })
}

/// One line a layer; the rest says what is in it.
pub(crate) fn text(ledger: &Ledger) -> String {
    let row = |name: &str, amount: String| vec![amount, name.to_string()];
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut unknown = Vec::new();
    for layer in &ledger.layers {
        match layer.amount {
            Amount::Known(size) => rows.push(row(layer.name.text(), bytes(size))),
            Amount::Unknown => unknown.push(layer.name),
        }
    }
    let size = |of: i128| signed_bytes(i64::try_from(of).unwrap_or(i64::MAX));
    match ledger.rest_bytes {
        Some(rest) if rest < 0 => rows.push(row("more than the device has", size(rest))),
        Some(rest) => {
            rows.push(row(&rest_text(&unknown), size(rest).trim_start_matches('+').to_string()));
        }
        None => {}
    }
    if let Some(device) = ledger.device_bytes {
        rows.push(row("the device", bytes(device)));
    }
    table(&[">bytes", "layer"], rows)
}

/// What the rest consists of. What the allocator holds is in layers of its own, if only in sums.
fn rest_text(unknown: &[Name]) -> String {
    let outer = unknown.iter().filter(|&&name| name <= Name::OtherCode).map(|name| name.text());
    let names: Vec<&str> = outer.chain(["context and kernels"]).collect();
    format!("the rest: {}", names.join(", "))
}

/// The ledger for `--json`: `null` is unknown.
pub(crate) fn json(ledger: &Ledger) -> Value {
    let layer = |layer: &memtape_core::ledger::Layer| {
        let bytes = match layer.amount {
            Amount::Known(bytes) => json!(bytes),
            Amount::Unknown => Value::Null,
        };
        json!({ "layer": layer.name.text(), "bytes": bytes })
    };
    let rest = ledger.rest_bytes.and_then(|rest| i64::try_from(rest).ok());
    json!({
        "device_bytes": ledger.device_bytes,
        "layers": ledger.layers.iter().map(layer).collect::<Vec<_>>(),
        "rest_bytes": rest,
    })
}

/// What the hooks beside the allocator's saw taken, on devices and on the host. `cudaMalloc` gave
/// the allocator its segments, too.
pub(crate) fn outside_text(outside: &[OutsideUse]) -> String {
    let row = |taken: &OutsideUse| {
        let place = if taken.origin.is_on_device() {
            format!("device {}", taken.device)
        } else {
            "host".to_string()
        };
        let name = taken.origin.name().to_string();
        vec![bytes(taken.bytes), taken.count.to_string(), place, name]
    };
    table(&[">bytes", ">pieces", "on", "taken by"], outside.iter().map(row).collect())
}

/// The same for `--json`.
pub(crate) fn outside_json(outside: &[OutsideUse]) -> Value {
    let each = |taken: &OutsideUse| {
        let device = taken.origin.is_on_device().then_some(taken.device);
        json!({ "origin": taken.origin.name(), "device": device, "bytes": taken.bytes,
            "pieces": taken.count })
    };
    outside.iter().map(each).collect()
}

#[cfg(test)]
mod tests {
    use memtape_core::ledger::Layer;
    use memtape_core::tape::layout::Origin;

    use super::*;

    #[test]
    fn what_is_unknown_is_in_the_rest_by_name() {
        let layer = |name, amount| Layer { name, amount };
        let mut ledger = Ledger {
            device_bytes: Some(4096),
            layers: vec![
                layer(Name::Free, Amount::Unknown),
                layer(Name::Nccl, Amount::Known(1024)),
                layer(Name::Deferred, Amount::Unknown),
                layer(Name::Requested, Amount::Known(512)),
            ],
            rest_bytes: Some(2560),
        };
        let expected = "\
    BYTES  LAYER
 1.00 KiB  nccl
    512 B  requested
 2.50 KiB  the rest: free, context and kernels
 4.00 KiB  the device
";
        let lines = |text: &str| text.lines().map(|l| l.trim().to_string()).collect::<Vec<_>>();
        assert_eq!(lines(&text(&ledger)), lines(expected));
        assert_eq!(json(&ledger)["layers"][0], json!({ "layer": "free", "bytes": null }));

        ledger.rest_bytes = Some(-100);
        assert!(text(&ledger).contains("-100 B  more than the device has"), "{}", text(&ledger));
    }

    #[test]
    fn memory_on_the_host_is_on_no_device() {
        let taken = |origin| OutsideUse { origin, device: 1, bytes: 2048, count: 3 };
        let uses = [taken(Origin::HostPinned), taken(Origin::Nccl)];
        let text = outside_text(&uses);
        assert!(text.contains("2.00 KiB") && text.contains("host") && text.contains("device 1"));
        let found = outside_json(&uses);
        assert_eq!((&found[0]["device"], &found[1]["device"]), (&Value::Null, &json!(1)));
    }
}
