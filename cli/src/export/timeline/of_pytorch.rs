//! The profiler's annotations in PyTorch's own snapshot file, which the state of a rank lacks.

use std::collections::BTreeMap;

use memtape_core::pickle::torch::Annotation;

use super::{Slice, Track};

/// Names of annotations that have a track of their own; further ones are left out.
const TRACKS_MAX: usize = 64;

/// One track for each name of an annotation. A suffix after a `#`, as in `ProfilerStep#12`, is no
/// part of the name. An end without a start and a start without an end are left out.
pub(crate) fn tracks(annotations: &[Annotation]) -> Vec<Track> {
    let mut open: BTreeMap<(&str, Option<u32>), i64> = BTreeMap::new();
    let mut tracks: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
    for annotation in annotations {
        let (name, at_us) = (annotation.name.as_str(), annotation.at_us);
        let at_ns = i64::try_from(at_us.saturating_mul(1000)).unwrap_or(i64::MAX);
        let key = (name, annotation.device);
        if annotation.is_start {
            open.insert(key, at_ns);
            continue;
        }
        let Some(start_ns) = open.remove(&key) else { continue };
        let track = name.split_once('#').map_or(name, |(base, _)| base);
        if tracks.len() < TRACKS_MAX || tracks.contains_key(track) {
            let slice = Slice { name: name.to_string(), start_ns, end_ns: at_ns.max(start_ns) };
            tracks.entry(track).or_default().push(slice);
        }
    }
    let track = |(name, slices): (&str, Vec<Slice>)| Track {
        name: name.to_string(),
        slices: without_overlap(slices),
    };
    tracks.into_iter().map(track).collect()
}

/// The slices in the order of time, without slices that begin before the previous one ends.
fn without_overlap(mut slices: Vec<Slice>) -> Vec<Slice> {
    slices.sort_by_key(|slice| (slice.start_ns, slice.end_ns));
    let mut end_ns = i64::MIN;
    slices.retain(|slice| {
        let is_apart = slice.start_ns >= end_ns;
        end_ns = if is_apart { slice.end_ns } else { end_ns };
        is_apart
    });
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_track_do_not_overlap() {
        let slice = |start_ns, end_ns| Slice { name: "s".into(), start_ns, end_ns };
        let kept = without_overlap(vec![slice(5, 9), slice(0, 5), slice(8, 12), slice(9, 10)]);
        assert_eq!(kept, [slice(0, 5), slice(5, 9), slice(9, 10)]);
    }
}
