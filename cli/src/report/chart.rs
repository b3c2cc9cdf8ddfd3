//! The ranks over the steps as SVG, with the fan of a forecast.
//!
//! The drawing is in parts of its width and height, so that it fits a page, a phone and paper; its
//! text is not scaled. A fan that reaches far beyond the steps that are known is cut, and a line of
//! text says where it ends.

use std::fmt::Write;

use maud::{Markup, html};

use crate::render::units::{about, bytes, plural};

/// Height in pixels, without the names of the steps.
const HEIGHT_PX: usize = 240;

/// Units of both axes inside of the drawing.
const UNITS: f64 = 1000.0;

/// The ranks over the steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Chart {
    /// What is shown of each rank.
    pub(crate) what: String,
    /// What the steps count: `step` or `turn`.
    pub(crate) unit: String,
    /// One for each rank.
    pub(crate) lines: Vec<Line>,
    /// Size of the device.
    pub(crate) device_bytes: Option<u64>,
    /// When the rank that the report is about runs out of memory.
    pub(crate) fan: Option<Fan>,
    /// Ranks that are not shown.
    pub(crate) left_out: usize,
}

/// One rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    /// Its number.
    pub(crate) rank: u32,
    /// Whether the report is about it.
    pub(crate) is_subject: bool,
    /// Steps and bytes.
    pub(crate) points: Vec<(u64, u64)>,
}

/// Steps from the last known one until memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fan {
    /// The early end (10 %).
    pub(crate) early: u64,
    /// The median.
    pub(crate) median: u64,
    /// The late end (90 %).
    pub(crate) late: u64,
}

/// The part of the world that is drawn.
#[derive(Clone, Copy, Debug)]
struct Frame {
    first: u64,
    last: u64,
    low: u64,
    high: u64,
}

impl Frame {
    /// From the steps and bytes of all lines, with room for the fan.
    fn of(chart: &Chart) -> Option<Self> {
        let points = || chart.lines.iter().flat_map(|line| &line.points);
        let (first, newest) = (points().map(|of| of.0).min()?, points().map(|of| of.0).max()?);
        let (low, high) = (points().map(|of| of.1).min()?, points().map(|of| of.1).max()?);
        let span = newest.saturating_sub(first).max(1);
        let room = chart.fan.map_or(0, |fan| fan.late.saturating_add(fan.late / 20).min(span));
        let mut frame = Self {
            first,
            last: newest.saturating_add(room).max(first.saturating_add(1)),
            low,
            high,
        };
        if let Some((start, device)) = chart.fan_start().zip(chart.device_bytes) {
            let top = chart.fan.map_or(0, |fan| ray(start, device, fan.early, frame.last).1);
            frame.high = frame.high.max(top);
        }
        // A level that does not change still needs a height.
        let margin = (frame.high - frame.low) / 12 + 1;
        (frame.low, frame.high) =
            (frame.low.saturating_sub(margin), frame.high.saturating_add(margin));
        Some(frame)
    }

    fn x(self, step: u64) -> f64 {
        let span = self.last.saturating_sub(self.first).max(1) as f64;
        step.saturating_sub(self.first) as f64 / span * UNITS
    }

    fn y(self, bytes: u64) -> f64 {
        let span = self.high.saturating_sub(self.low).max(1) as f64;
        UNITS - bytes.saturating_sub(self.low) as f64 / span * UNITS
    }

    fn point(self, (step, bytes): (u64, u64)) -> String {
        format!("{:.1},{:.1}", self.x(step), self.y(bytes))
    }

    fn polyline(self, points: &[(u64, u64)]) -> String {
        let mut text = String::new();
        for &point in points {
            let _ = write!(text, "{} ", self.point(point));
        }
        text.trim_end().to_string()
    }
}

impl Chart {
    /// Where the forecast begins: the last point of the rank that the report is about.
    fn fan_start(&self) -> Option<(u64, u64)> {
        self.lines.iter().find(|line| line.is_subject)?.points.last().copied()
    }
}

/// The point at which a straight line from `start` to the full device leaves the drawing.
fn ray(start: (u64, u64), device: u64, steps: u64, last: u64) -> (u64, u64) {
    let reach = last.saturating_sub(start.0).min(steps);
    let left = u128::from(device.saturating_sub(start.1));
    let gained = left * u128::from(reach) / u128::from(steps.max(1));
    (start.0 + reach, start.1.saturating_add(u64::try_from(gained).unwrap_or(u64::MAX)))
}

/// The chart; nothing where no point is known.
pub(crate) fn drawing(chart: &Chart) -> Markup {
    let Some(frame) = Frame::of(chart) else { return html! {} };
    let marks = marks(frame);
    let full = chart.device_bytes.filter(|size| (frame.low..=frame.high).contains(size));
    let middle = frame.first + (frame.last - frame.first) / 2;
    html! {
        figure class="chart" {
            svg width="100%" height=(HEIGHT_PX + 22) role="img" {
                title { (chart.what) }
                svg width="100%" height=(HEIGHT_PX) viewBox="0 0 1000 1000"
                    preserveAspectRatio="none" {
                    rect class="plot" width="1000" height="1000" {}
                    @for (part, _) in &marks {
                        line class="grid" x1="0" x2="1000" y1=(part) y2=(part) {}
                    }
                    (fan(chart, frame))
                    @for line in chart.lines.iter().filter(|line| !line.is_subject) {
                        (one(frame, line))
                    }
                    @for line in chart.lines.iter().filter(|line| line.is_subject) {
                        (one(frame, line))
                    }
                    @if let Some(size) = full {
                        line class="full" x1="0" x2="1000" y1=(frame.y(size)) y2=(frame.y(size)) {}
                    }
                }
                @for (part, level) in &marks {
                    text class="mark" x="4" y=(HEIGHT_PX * part / 1000) dy="-4" { (level) }
                }
                text class="mark" x="0" y=(HEIGHT_PX + 16) { (chart.unit) " " (frame.first) }
                text class="mark middle" x="50%" y=(HEIGHT_PX + 16) { (middle) }
                text class="mark end" x="100%" y=(HEIGHT_PX + 16) { (frame.last) }
            }
            figcaption { (legend(chart, full.is_some())) }
        }
    }
}

/// Three levels with their names, and where they are, in thousandths from the top. Where two have
/// the same name, the upper ones are named by their distance from the lowest.
fn marks(frame: Frame) -> [(usize, String); 3] {
    let step = (frame.high - frame.low) / 4;
    let level = |nth: u64| frame.low.saturating_add(step.saturating_mul(nth));
    let names = [3, 2, 1].map(|nth| bytes(level(nth)));
    let [upper, middle, lower] = names;
    let has_same = upper == middle || middle == lower;
    let distance = |nth: u64| format!("+{}", bytes(step.saturating_mul(nth)));
    let [upper, middle] = if has_same { [distance(2), distance(1)] } else { [upper, middle] };
    [(250, upper), (500, middle), (750, lower)]
}

fn one(frame: Frame, line: &Line) -> Markup {
    html! {
        polyline class=(if line.is_subject { "rank subject" } else { "rank" })
            points=(frame.polyline(&line.points)) {
            title { "rank " (line.rank) }
        }
    }
}

fn fan(chart: &Chart, frame: Frame) -> Markup {
    let (Some(start), Some(device), Some(fan)) = (chart.fan_start(), chart.device_bytes, chart.fan)
    else {
        return html! {};
    };
    let end = |steps| ray(start, device, steps, frame.last);
    let corners = [start, end(fan.early), end(fan.late)];
    html! {
        polygon class="fan" points=(frame.polyline(&corners)) {}
        polyline class="forecast" points=(frame.polyline(&[start, end(fan.median)])) {}
    }
}

fn legend(chart: &Chart, is_full_shown: bool) -> Markup {
    let subject = chart.lines.iter().find(|line| line.is_subject);
    let others = chart.lines.iter().filter(|line| !line.is_subject).count() as u64;
    html! {
        (chart.what) ". "
        @if let Some(line) = subject {
            span class="key subject" { "rank " (line.rank) }
        }
        @if others > 0 { span class="key" { (plural(others, "other rank")) } }
        @if let Some(fan) = chart.fan {
            span class="key forecast" {
                "forecast: full in " (about(fan.early)) " to " (about(fan.late)) " " (chart.unit)
                "s, median " (about(fan.median))
            }
        }
        @if let Some(size) = chart.device_bytes {
            span class="key full" {
                "the device holds " (bytes(size))
                @if !is_full_shown { ", above this chart" }
            }
        }
        @if chart.left_out > 0 {
            span class="key" { (plural(chart.left_out as u64, "further rank")) " not shown" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let line = |rank, rate: u64| Line {
            rank,
            is_subject: rank == 2,
            points: (0..50).map(|step| (step, 1000 + step * rate)).collect(),
        };
        Chart {
            what: "per-step minimum".into(),
            unit: "step".into(),
            lines: vec![line(1, 0), line(2, 10)],
            device_bytes: Some(2000),
            fan: Some(Fan { early: 40, median: 51, late: 60 }),
            left_out: 3,
        }
    }

    #[test]
    fn the_fan_ends_where_the_device_is_full() {
        assert_eq!(ray((49, 1490), 2000, 51, 1000), (100, 2000));
        assert_eq!(ray((49, 1490), 2000, 51, 74), (74, 1740));
        assert_eq!(ray((49, 1490), 2000, 0, 74), (49, 1490));
        let svg = drawing(&chart()).into_string();
        assert_eq!(svg.matches("<polyline class=\"rank").count(), 2);
        for part in ["class=\"fan\"", "class=\"full\"", "median 51", "3 further ranks not shown"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }

    #[test]
    fn levels_that_are_close_have_different_names() {
        let names = |low, high| marks(Frame { first: 0, last: 1, low, high }).map(|(_, name)| name);
        assert_eq!(names(0, 8 << 30), ["6 GiB", "4 GiB", "2 GiB"]);
        let close = names(80 << 30, (80 << 30) + (8 << 20));
        assert_eq!(close, ["+4 MiB", "+2 MiB", "80 GiB"]);
    }

    #[test]
    fn odd_values_are_drawn_or_left_out() {
        assert_eq!(drawing(&Chart::default()).into_string(), "");
        let check = |points: Vec<(u64, u64)>, fan: Option<Fan>| {
            let line = Line { rank: 2, is_subject: true, points };
            let svg = drawing(&Chart { lines: vec![line], fan, ..chart() }).into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf,"), "{svg}");
        };
        check(vec![(5, 5)], None);
        check(vec![(0, 0), (1, u64::MAX / 2)], Some(Fan { early: 0, median: 0, late: 0 }));
        check(vec![(u64::MAX - 9, 7)], Some(Fan { early: 1, median: 2, late: u64::MAX }));
    }
}
