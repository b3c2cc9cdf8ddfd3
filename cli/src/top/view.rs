//! The screens of `memtape top`: draws the model. Decides nothing.
//!
//! From top to bottom: the coordinator, where the user is, the table, facts about the selected row,
//! and the keys. Wider terminals show more columns.

use memtape_proto::api::Incident;
use ratatui::Frame;
use ratatui::backend::FromCrossterm;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Row, Sparkline, Table, TableState, Wrap};

use super::model::{Level, Model};
use crate::clock::{age, utc};
use crate::output::clean;
use crate::render::palette::{self, Meaning};
use crate::render::table::{self, Cell};
use crate::render::units::{bytes, duration, plural};
use crate::render::{answers, lines, ranks, units};

/// Terminals that are this wide show all columns.
const WIDE: u16 = 120;

/// Rows below the table.
const DETAIL_ROWS: u16 = 7;

/// Rows for the reason why the coordinator does not answer.
const LOST_ROWS: u16 = 3;

/// Cells between two columns.
const COLUMN_SPACING: u16 = 1;

/// Marker of the selected row.
const SELECTED: &str = "> ";

const HELP: &str = "\
memtape top shows the jobs of a coordinator, the ranks of a job,
and the lines of code that hold the memory of a rank.

up, down, j, k        select a row
PgUp, PgDn, Home, End
Enter                 open the selected row
Esc, Backspace        take the filter away, or go back
/                     show only rows with these letters
s                     sort by the next column
h, ?                  this help
q, Ctrl-C             end

any key goes back";

/// Draws the model.
pub(super) struct View<'a> {
    pub(super) model: &'a Model,
    /// The coordinator's URL.
    pub(super) coordinator: &'a str,
    /// Unix time now.
    pub(super) now_ns: i64,
    /// Colours may be used.
    pub(super) is_coloured: bool,
}

impl View<'_> {
    /// Draws one frame.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [title, path, table, detail, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(if self.model.lost.is_some() { LOST_ROWS } else { 1 }),
            Constraint::Min(3),
            Constraint::Length(DETAIL_ROWS),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(), title);
        frame.render_widget(paragraph(vec![self.path()]), path);
        match self.model.level {
            Level::Jobs => self.jobs(frame, table, detail),
            Level::Ranks => self.ranks(frame, table, detail),
            Level::Lines => self.lines(frame, table, detail),
        }
        frame.render_widget(self.keys(), keys);
        if self.model.is_helping {
            self.help(frame);
        }
    }

    fn style(&self, meaning: Meaning) -> Style {
        let style = match meaning.attribute() {
            Some(_) => Style::new().add_modifier(Modifier::BOLD),
            None => Style::new(),
        };
        match meaning.color().filter(|_| self.is_coloured) {
            Some(color) => style.fg(Color::from_crossterm(color)),
            None => style,
        }
    }

    fn painted(&self, text: impl Into<String>, meaning: Meaning) -> Span<'static> {
        Span::styled(clean(&text.into()), self.style(meaning))
    }

    fn title(&self) -> Line<'static> {
        let mut spans = vec![
            self.painted("memtape top", Meaning::Strong),
            self.painted(format!("  {}  ", self.coordinator), Meaning::Dim),
        ];
        if let Some(answer) = self.model.answer() {
            let open: u64 = answer.jobs.iter().map(|job| u64::from(job.incidents_open)).sum();
            let jobs = plural(answer.jobs.len() as u64, "job");
            spans.push(Span::raw(format!("{jobs}, ")));
            let meaning = if open > 0 { Meaning::Bad } else { Meaning::Plain };
            spans.push(self.painted(plural(open, "open incident"), meaning));
            spans.push(self.painted(format!("  {} UTC", time(answer.wall_ns)), Meaning::Dim));
        }
        Line::from(spans)
    }

    /// Path of the shown table; while the coordinator does not answer, the reason.
    fn path(&self) -> Line<'static> {
        if let Some(why) = &self.model.lost {
            let of = self.model.answer().map_or("nothing is known yet".to_string(), |answer| {
                format!("this is from {}", age(answer.wall_ns, self.now_ns))
            });
            return Line::from(self.painted(format!("{of}; trying again: {why}"), Meaning::Bad));
        }
        let mut words = vec!["jobs".to_string()];
        if self.model.level != Level::Jobs {
            words.push(self.model.job().unwrap_or("?").to_string());
        }
        if self.model.level == Level::Lines {
            words.push(self.model.rank().map_or("?".into(), |rank| format!("rank {rank}")));
        }
        let mut text = format!("{}  sorted by {}", words.join(" > "), self.model.order());
        if self.model.is_filtering || !self.model.filter().is_empty() {
            let cursor = if self.model.is_filtering { "_" } else { "" };
            text.push_str(&format!("  filter: {}{cursor}", self.model.filter()));
        }
        Line::from(self.painted(text, Meaning::Plain))
    }

    fn keys(&self) -> Line<'static> {
        let text = match (self.model.is_filtering, self.model.level) {
            (true, _) => "letters: filter   Enter keep   Esc take away",
            (false, Level::Jobs) => "Enter ranks   / filter   s sort   h help   q quit",
            (false, Level::Ranks) => "Enter lines   Esc back   / filter   s sort   h help   q quit",
            (false, Level::Lines) => "Esc back   / filter   s sort   h help   q quit",
        };
        Line::from(self.painted(text, Meaning::Dim))
    }

    fn help(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(HELP), area);
    }

    fn jobs(&self, frame: &mut Frame<'_>, area: Rect, detail: Rect) {
        let jobs = self.model.jobs();
        let table = answers::job_table(jobs.iter().copied(), self.now_ns);
        let narrow = ["job", "state", ">alive", ">step", ">open incidents", ">started"];
        self.table(frame, area, table, (&narrow, &["nodes"]));
        let mut text = Vec::new();
        if jobs.is_empty() && self.model.answer().is_some() {
            text.push(Line::from("no job: start one with  memtape run -- torchrun …"));
        }
        if let Some(job) = self.model.selected().and_then(|row| jobs.get(row)) {
            text.extend(self.incidents(&job.job, None));
        }
        frame.render_widget(paragraph(text), detail);
    }

    fn ranks(&self, frame: &mut Frame<'_>, area: Rect, detail: Rect) {
        let narrow =
            [">rank", "state", ">step", ">of device", ">allocated", ">reserved", ">growth/step"];
        let wide = [">peak", ">blocks", ">ooms", ">rss", ">pid", "node"];
        let table = ranks::table(self.model.ranks()).column(">of device", ranks::memory_bar);
        self.table(frame, area, table, (&narrow, &wide));
        let incidents = match (self.model.job(), self.model.rank()) {
            (Some(job), Some(rank)) => self.incidents(job, Some(rank)),
            _ => Vec::new(),
        };
        self.of_rank(frame, detail, incidents);
    }

    /// The memory of the rank over its steps, and text below it.
    fn of_rank(&self, frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>) {
        let [series, text] =
            Layout::vertical([Constraint::Length(4), Constraint::Min(1)]).areas(area);
        self.series(frame, series);
        frame.render_widget(paragraph(lines), text);
    }

    fn lines(&self, frame: &mut Frame<'_>, area: Rect, detail: Rect) {
        let held: Vec<lines::Held<'_>> =
            self.model.lines().into_iter().map(|(line, of)| (line, of, true)).collect();
        let narrow = ["line", ">holds", ">survivors", ">kept/step", ">since step"];
        let wide = [">over steps", ">blocks", ">oldest step", ">median rank"];
        self.table(frame, area, lines::table(&held), (&narrow, &wide));
        let selected = self.model.selected().and_then(|row| held.get(row));
        let frames = selected.map(|(line, ..)| line.frames.as_slice()).unwrap_or_default();
        let frames: Vec<Line<'_>> = match (frames, self.model.answer()) {
            ([], Some(_)) => vec![Line::from("no line of this rank is known")],
            (frames, _) => frames.iter().map(|of| Line::from(units::frame(of))).collect(),
        };
        self.of_rank(frame, detail, frames);
    }

    /// The columns with these titles; wide terminals show the second ones, too. Numbers are never
    /// cut; texts are cut where they do not fit.
    fn table<T>(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        of: table::Table<'_, T>,
        (narrow, wide): (&[&str], &[&str]),
    ) {
        let wide = if area.width >= WIDE { wide } else { &[] };
        let of = of.only(&[narrow, wide].concat());
        let columns = of.columns();
        let aligned = |title: &str, line: Line<'static>| match table::is_number(title) {
            true => line.right_aligned(),
            false => line,
        };
        let titles = columns
            .iter()
            .map(|(title, _)| aligned(title, Line::from(table::name(title).to_uppercase())));
        let limits: Vec<Constraint> = columns
            .iter()
            .map(|column| match u16::try_from(natural(column)).unwrap_or(u16::MAX) {
                width if table::is_number(column.0) => Constraint::Length(width),
                width => Constraint::Max(width),
            })
            .collect();
        let count = columns.first().map_or(0, |(_, cells)| cells.len());
        let row = |row: usize| {
            let cells = columns.iter().filter_map(|(title, cells)| {
                let (text, meaning) = cells.get(row)?.shown();
                Some(aligned(title, Line::from(Span::styled(text, self.style(meaning)))))
            });
            Row::new(cells.collect::<Vec<_>>())
        };
        let table = Table::new((0..count).map(row), limits)
            .header(Row::new(titles).style(self.style(Meaning::Dim)))
            .column_spacing(COLUMN_SPACING)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .highlight_symbol(SELECTED);
        let mut state = TableState::new().with_selected(self.model.selected());
        frame.render_stateful_widget(table, area, &mut state);
    }

    /// The rank's memory over the last steps, between its lowest and its highest value.
    fn series(&self, frame: &mut Frame<'_>, area: Rect) {
        let rank = self.model.rank().map_or("?".to_string(), |rank| rank.to_string());
        let series = self.model.answer().map(|answer| &answer.series);
        let values = series.map(|of| of.step_min_bytes.as_slice()).unwrap_or_default();
        let left_out = values.len().saturating_sub(usize::from(area.width));
        let values = values.get(left_out..).unwrap_or_default();
        let [heading, bars] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        let bounds = values.iter().min().zip(values.iter().max());
        let Some((low, high)) = bounds else {
            let text = format!("memory of rank {rank}: no steps yet");
            frame.render_widget(self.painted(text, Meaning::Dim), heading);
            return;
        };
        let steps = series.map(|of| of.steps.as_slice()).unwrap_or_default();
        let first = steps.get(left_out).copied().unwrap_or(0);
        let last = steps.last().copied().unwrap_or(0);
        let text = format!(
            "memory of rank {rank}, lowest of each step, {} to {}, steps {first} to {last}",
            bytes(*low),
            bytes(*high)
        );
        frame.render_widget(self.painted(text, Meaning::Strong), heading);
        // The lowest value has a bar too.
        let scale = (high - low).max(1);
        let heights = values.iter().map(|value| 1 + (value - low).saturating_mul(23) / scale);
        let sparkline = Sparkline::default().data(heights.collect::<Vec<u64>>()).max(24);
        frame.render_widget(sparkline, bars);
    }

    /// The open incidents, in their own sentences.
    fn incidents(&self, job: &str, rank: Option<u32>) -> Vec<Line<'static>> {
        let incidents = self.model.incidents(job, rank);
        if incidents.is_empty() && self.model.answer().is_some() {
            let whose = rank.map_or(job.to_string(), |rank| format!("rank {rank}"));
            return vec![Line::from(
                self.painted(format!("no open incident of {whose}"), Meaning::Dim),
            )];
        }
        incidents
            .into_iter()
            .map(|incident| {
                let meaning = palette::of_incident(incident);
                Line::from(vec![
                    self.painted(&incident.id, meaning),
                    Span::raw(format!("  {}{}", forecast(incident), clean(&incident.sentence))),
                ])
            })
            .collect()
    }
}

fn forecast(incident: &Incident) -> String {
    let left = incident.seconds_to_oom.map(|seconds| duration(seconds as f64));
    left.map_or(String::new(), |left| format!("{left} left: "))
}

/// Width of a column where the screen is wide enough.
fn natural((title, cells): &(&str, Vec<Cell>)) -> usize {
    cells.iter().map(Cell::width).chain([table::name(title).len()]).max().unwrap_or_default()
}

/// Lines that are wrapped at the width.
fn paragraph(lines: Vec<Line<'_>>) -> Paragraph<'_> {
    Paragraph::new(lines).wrap(Wrap { trim: true })
}

/// `07:00:04`.
fn time(wall_ns: i64) -> String {
    utc(wall_ns).split(' ').nth(1).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::model::Event;
    use crate::top::samples::{NOW_NS, at};
    use crossterm::event::KeyCode;

    /// The text of the screen, without spaces at the ends of lines.
    fn screen(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let view = View {
            model,
            coordinator: "http://127.0.0.1:7771",
            now_ns: NOW_NS + 12_000_000_000,
            is_coloured: false,
        };
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(width));
        let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        rows.map(|row| format!("{}\n", row.trim_end())).collect()
    }

    /// Compares with the file of this name; `MEMTAPE_BLESS=1` writes it.
    fn check(model: &Model, name: &str) {
        for (width, height) in [(80, 24), (200, 50)] {
            let found = screen(model, width, height);
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/screens");
            let path = format!("{folder}/{name}_{width}x{height}.txt");
            if std::env::var_os("MEMTAPE_BLESS").is_some() {
                std::fs::write(&path, &found).expect("written");
            }
            let expected = std::fs::read_to_string(&path).expect(&path);
            assert_eq!(found, expected, "{path}: MEMTAPE_BLESS=1 writes it again");
        }
    }

    #[test]
    fn each_level_has_its_screen() {
        check(&at(Level::Jobs), "jobs");
        let mut ranks = at(Level::Ranks);
        ranks.update(Event::Key(KeyCode::Down));
        ranks.update(Event::Key(KeyCode::Down));
        let of = ranks.wanted();
        let answer = crate::top::samples::answer();
        ranks.update(Event::Answer(Box::new(crate::top::model::Answer { of, ..answer })));
        check(&ranks, "ranks");
        check(&at(Level::Lines), "lines");
    }

    #[test]
    fn help_filter_and_a_lost_coordinator_have_their_screens() {
        let mut helping = at(Level::Jobs);
        helping.update(Event::Key(KeyCode::Char('h')));
        check(&helping, "help");
        let mut filtering = at(Level::Ranks);
        for key in "/node-1".chars() {
            filtering.update(Event::Key(KeyCode::Char(key)));
        }
        check(&filtering, "filter");
        let mut lost = at(Level::Jobs);
        lost.update(Event::Lost("nothing listens at http://127.0.0.1:7771".to_string()));
        check(&lost, "lost");
        let mut never = Model::default();
        never.update(Event::Lost("nothing listens at http://127.0.0.1:7771".to_string()));
        check(&never, "never_answered");
    }

    #[test]
    fn tiny_terminals_are_drawn_too() {
        for (width, height) in [(1, 1), (10, 3), (39, 8)] {
            assert_eq!(
                screen(&at(Level::Ranks), width, height).lines().count(),
                usize::from(height)
            );
        }
    }
}
