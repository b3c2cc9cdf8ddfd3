//! The figure of each class of trouble: what its curves look like over the steps, drawn from a
//! formula. They are sketches, and their pages say so; no job was measured for them.

use std::fmt::Write;

use memtape_core::diagnosis::Class;

/// Size of the drawing, and of the part with the curves.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 16.0;
const RIGHT: f64 = 460.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 150.0;

/// Points of a curve.
const POINTS: u32 = 240;

/// Colours that can be told apart on white and on black: of what is wrong, and of the others.
const COLOURS: [&str; 3] = ["#d9480f", "#1c7ed6", "#868e96"];

/// What a curve shows, and its height from 0 to 1 over the time from 0 to 1; none where it ends.
struct Curve(&'static str, fn(f64) -> Option<f64>);

/// The curves of a class; the first is the one to look at.
fn curves(class: Class) -> Vec<Curve> {
    const LEVEL: Curve = Curve("allocated", |_| Some(0.3));
    const PEERS: Curve = Curve("its peers", |_| Some(0.3));
    match class {
        Class::OutOfMemory => vec![
            Curve("allocated, until the request", |t| (t < 0.8).then_some(0.3 + 0.6 * late(t))),
            Curve("the device", |_| Some(0.95)),
        ],
        Class::Died => vec![
            Curve("steps, this rank", |t| (t < 0.55).then_some(0.1 + 0.8 * t)),
            Curve("steps, its peers", |t| Some(0.25 + 0.8 * t.min(0.58))),
        ],
        Class::Leak => {
            vec![Curve("minimum of each step, this rank", |t| Some(0.3 + 0.55 * late(t))), PEERS]
        }
        Class::ReferenceCycles => {
            vec![Curve("allocated", |t| Some(0.25 + 0.5 * (3.5 * t).fract())), PEERS]
        }
        Class::CompilePools => {
            vec![Curve("allocated, private pools", |t| Some(0.3 + 0.5 * (6.0 * t).floor() / 6.0))]
        }
        Class::Fragmentation => vec![Curve("reserved", |t| Some(0.4 + 0.5 * late(t))), LEVEL],
        Class::DeferredFrees => vec![
            Curve("pending frees", |t| Some(0.05 + 0.4 * late(t))),
            Curve("reserved", |t| Some(0.4 + 0.4 * late(t))),
            Curve("allocated", |_| Some(0.34)),
        ],
        Class::CacheThrash => {
            let reserved = |t: f64| Some(if (24.0 * t).fract() < 0.5 { 0.75 } else { 0.45 });
            vec![Curve("reserved", reserved), LEVEL]
        }
        Class::Imbalance => {
            let peak = |t: f64| Some(0.75 + 0.06 * (40.0 * t).sin());
            let others = |t: f64| Some(0.45 + 0.04 * (37.0 * t).sin());
            vec![Curve("peak of each step, this rank", peak), Curve("its peers", others)]
        }
        Class::Pressure => {
            vec![Curve("allocated", |t| Some(0.2 + 0.6 * (1.0 - (-6.0 * t).exp())))]
        }
        Class::NonTorch => vec![
            Curve("the process on the device", |t| Some(0.5 + 0.4 * late(t))),
            Curve("reserved by PyTorch", |_| Some(0.4)),
        ],
        Class::Host => vec![
            Curve("memory of the host", |t| Some(0.3 + 0.55 * late(t))),
            Curve("allocated on the device", |_| Some(0.2)),
        ],
        Class::Desynchronised => vec![
            Curve("collectives, this rank", |t| Some(0.1 + 0.7 * t.min(0.5))),
            Curve("collectives, its peers", |t| Some(0.2 + 0.9 * t.min(0.55))),
        ],
        Class::Telemetry => vec![
            Curve("allocated, this rank", |t| (t < 0.5).then_some(0.45)),
            Curve("its peers", |_| Some(0.3)),
        ],
        Class::Unknown => vec![
            Curve("allocated", |t| Some(0.35 + 0.5 * late(t))),
            Curve("explained by lines", |_| Some(0.25)),
        ],
    }
}

/// Nothing for the first fifth, then evenly up to 1.
fn late(t: f64) -> f64 {
    ((t - 0.2) / 0.8).max(0.0)
}

/// The drawing of a class as SVG.
pub(super) fn figure(class: Class) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>A sketch of {}</title>\n\
         <style>text {{ font: 13px sans-serif }}</style>\n\
         <path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#868e96\"/>\n\
         <text x=\"{RIGHT}\" y=\"168\" text-anchor=\"end\" fill=\"#868e96\">steps</text>\n",
        class.as_str()
    );
    for (Curve(name, height), colour) in curves(class).iter().zip(COLOURS) {
        let points: Vec<(f64, f64)> = (0..=POINTS)
            .filter_map(|at| {
                let t = f64::from(at) / f64::from(POINTS);
                Some((LEFT + (RIGHT - LEFT) * t, BOTTOM - (BOTTOM - TOP) * height(t)?))
            })
            .collect();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (x, y) = points.last().copied().unwrap_or((LEFT, BOTTOM));
        let (x, y, line) = (x + 8.0, y + 4.0, line.join(" "));
        writeln!(
            svg,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name}</text>"
        )
        .expect("a string grows");
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process::root;

    #[test]
    fn every_class_has_its_figure() {
        for &class in Class::ALL {
            let name = class.as_str();
            let folder = root().join("docs/classes");
            let written = fs::read_to_string(folder.join(format!("{name}.svg")));
            let how = "run cargo xtask docs --reference";
            let is_new = written.is_ok_and(|written| written == figure(class));
            assert!(is_new, "docs/classes/{name}.svg is old: {how}");
            let page = fs::read_to_string(folder.join(format!("{name}.md"))).expect("its page");
            assert!(page.contains(&format!("({name}.svg)")), "{name}.md shows its figure");
        }
    }

    #[test]
    fn curves_stay_in_the_drawing_and_names_apart() {
        for &class in Class::ALL {
            let mut ends = Vec::new();
            for Curve(name, height) in curves(class) {
                let heights = (0..=POINTS).filter_map(|at| height(f64::from(at) / 240.0));
                let heights: Vec<f64> = heights.collect();
                assert!(heights.iter().all(|height| (0.0..=1.0).contains(height)), "{name}");
                ends.extend(heights.last().copied());
            }
            ends.sort_by(f64::total_cmp);
            let is_apart = |pair: &[f64]| pair[1] - pair[0] > 0.1;
            assert!(ends.windows(2).all(is_apart) && !ends.is_empty(), "{class:?}: {ends:?}");
        }
    }
}
