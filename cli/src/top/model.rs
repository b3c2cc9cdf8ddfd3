//! The state of `memtape top`, and how keys and answers change it.
//!
//! Pure: no clock, terminal or network. [`Model::wanted`] names the data to fetch; `view.rs` draws
//! the state. The selection stays on its row when rows move.

use std::cmp::{Ordering, Reverse};

use crossterm::event::KeyCode;
use memtape_proto::api::{Frame, Holder, Incident, IncidentState, Job, Line, Lines, Rank, Series};

use crate::render::lines;

/// Rows that Page Up and Page Down move by.
const PAGE_ROWS: usize = 10;

/// Rows of the table: jobs, ranks or lines.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Level {
    /// All jobs.
    #[default]
    Jobs,
    /// The ranks of one job.
    Ranks,
    /// The lines of code that hold the memory of one rank.
    Lines,
}

/// An order of rows, and its name.
type Order<T> = (&'static str, fn(&T, &T) -> Ordering);

/// Orders of the jobs; each goes over into the next, and the last into the first.
const JOB_ORDERS: [Order<Job>; 3] = [
    ("name", |a, b| a.job.cmp(&b.job)),
    ("incidents", |a, b| b.incidents_open.cmp(&a.incidents_open)),
    ("newest", |a, b| b.started_wall_ns.cmp(&a.started_wall_ns)),
];

/// Orders of the ranks of a job.
const RANK_ORDERS: [Order<Rank>; 4] = [
    ("rank", |a, b| a.rank.cmp(&b.rank)),
    ("growth", |a, b| b.growth_bytes_per_step.cmp(&a.growth_bytes_per_step)),
    ("allocated", |a, b| allocated(b).cmp(&allocated(a))),
    ("state", |a, b| (a.state.as_str(), a.rank).cmp(&(b.state.as_str(), b.rank))),
];

/// Orders of the lines of a rank.
const LINE_ORDERS: [Order<Holder>; 3] = [
    ("survivors", |a, b| b.survivor_bytes.cmp(&a.survivor_bytes)),
    ("holds", |a, b| b.bytes.cmp(&a.bytes)),
    ("kept", |a, b| b.growth_bytes_per_step.cmp(&a.growth_bytes_per_step)),
];

/// The order with this number; after the last comes the first.
fn nth<T>(orders: &[Order<T>], number: usize) -> Order<T> {
    orders.iter().cycle().nth(number).copied().unwrap_or(("", |_, _| Ordering::Equal))
}

/// An event that the program handles.
#[derive(Debug)]
pub(crate) enum Event {
    Key(KeyCode),
    /// Ctrl-C.
    Interrupt,
    /// The coordinator answered.
    Answer(Box<Answer>),
    /// The coordinator did not answer; why, in one line.
    Lost(String),
}

/// Data to fetch.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Wanted {
    /// The job whose ranks are wanted.
    pub(crate) job: Option<String>,
    /// The rank whose series is wanted.
    pub(crate) rank: Option<u32>,
    /// True if the lines of that rank are wanted, too.
    pub(crate) lines: bool,
}

/// Data from the coordinator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// The data that were requested.
    pub(crate) of: Wanted,
    pub(crate) jobs: Vec<Job>,
    pub(crate) incidents: Vec<Incident>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) series: Series,
    pub(crate) lines: Lines,
    /// Unix time of the answer.
    pub(crate) wall_ns: i64,
}

/// Identity of a row, unique in its table.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Row {
    Job(String),
    Rank(u32),
    /// A line may hold memory on several devices of a rank.
    Line {
        device: u8,
        frames: Vec<Frame>,
    },
}

/// A table: the selected row, the filter of all, and the number of their order.
#[derive(Clone, Debug, Default)]
struct Table {
    selected: Option<Row>,
    filter: String,
    order: usize,
}

/// The whole state.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// The level on the screen.
    pub(super) level: Level,
    tables: [Table; 3],
    answer: Answer,
    has_answer: bool,
    /// Why the newest answer did not come, if it did not.
    pub(super) lost: Option<String>,
    /// Keys are letters of the filter.
    pub(super) is_filtering: bool,
    /// True while the help is shown.
    pub(super) is_helping: bool,
    /// True if the program is to end.
    pub(super) is_over: bool,
}

impl Model {
    /// A start at the ranks of this job, or at all jobs.
    pub(crate) fn new(job: Option<String>) -> Self {
        let mut model = Self::default();
        if let Some(job) = job {
            model.tables[Level::Jobs as usize].selected = Some(Row::Job(job));
            model.level = Level::Ranks;
        }
        model
    }

    /// The newest answer, which may be old; none before the first.
    pub(crate) fn answer(&self) -> Option<&Answer> {
        self.has_answer.then_some(&self.answer)
    }

    /// The filter of the table that is shown.
    pub(crate) fn filter(&self) -> &str {
        &self.table().filter
    }

    /// The name of the order of the table that is shown.
    pub(crate) fn order(&self) -> &'static str {
        let number = self.order_of(self.level);
        match self.level {
            Level::Jobs => nth(&JOB_ORDERS, number).0,
            Level::Ranks => nth(&RANK_ORDERS, number).0,
            Level::Lines => nth(&LINE_ORDERS, number).0,
        }
    }

    /// The job whose ranks or lines are shown.
    pub(crate) fn job(&self) -> Option<&str> {
        match &self.tables[Level::Jobs as usize].selected {
            Some(Row::Job(job)) => Some(job),
            _ => None,
        }
    }

    /// The rank that is selected, or whose lines are shown.
    pub(crate) fn rank(&self) -> Option<u32> {
        match self.tables[Level::Ranks as usize].selected {
            Some(Row::Rank(rank)) => Some(rank),
            _ => None,
        }
    }

    /// Data to fetch for this screen.
    pub(crate) fn wanted(&self) -> Wanted {
        let is_below = self.level != Level::Jobs;
        Wanted {
            job: self.job().filter(|_| is_below).map(str::to_string),
            rank: self.rank().filter(|_| is_below),
            lines: self.level == Level::Lines,
        }
    }

    /// The jobs that the filter lets pass, in order.
    pub(crate) fn jobs(&self) -> Vec<&Job> {
        let (_, order) = nth(&JOB_ORDERS, self.order_of(Level::Jobs));
        let words = |job: &&Job| job.job.clone();
        self.passing(Level::Jobs, self.answer.jobs.iter(), words, |a, b| order(a, b))
    }

    /// The ranks that the filter lets pass, in order.
    pub(crate) fn ranks(&self) -> Vec<&Rank> {
        let (_, order) = nth(&RANK_ORDERS, self.order_of(Level::Ranks));
        let words = |rank: &&Rank| format!("{} {} {}", rank.rank, rank.state, rank.node);
        self.passing(Level::Ranks, self.answer.ranks.iter(), words, |a, b| order(a, b))
    }

    /// The lines of the rank that pass the filter, in order, each with the rank's holdings.
    pub(crate) fn lines(&self) -> Vec<(&Line, &Holder)> {
        let rank = self.rank();
        let held = |line: &'_ Line| line.holders.iter().position(|of| Some(of.rank) == rank);
        let found = self.answer.lines.lines.iter();
        let found = found.filter_map(|line| Some((line, line.holders.get(held(line)?)?)));
        let (_, order) = nth(&LINE_ORDERS, self.order_of(Level::Lines));
        let words = |(line, _): &(&Line, &Holder)| lines::name(line);
        self.passing(Level::Lines, found, words, |(_, a), (_, b)| order(a, b))
    }

    /// Items of a level whose words pass its filter, in order.
    fn passing<T>(
        &self,
        level: Level,
        all: impl Iterator<Item = T>,
        words: impl Fn(&T) -> String,
        order: impl Fn(&T, &T) -> Ordering,
    ) -> Vec<T> {
        let filter = self.tables[level as usize].filter.to_lowercase();
        let mut shown: Vec<T> =
            all.filter(|of| words(of).to_lowercase().contains(&filter)).collect();
        shown.sort_by(order);
        shown
    }

    /// The open incidents of a job, of one rank if one is given; the most urgent come first.
    pub(crate) fn incidents(&self, job: &str, rank: Option<u32>) -> Vec<&Incident> {
        let is_of = |it: &&Incident| {
            it.job == job
                && it.state == IncidentState::Open
                && rank.is_none_or(|rank| it.rank == rank)
        };
        let mut incidents: Vec<&Incident> = self.answer.incidents.iter().filter(is_of).collect();
        incidents.sort_by_key(|incident| Reverse(incident.urgency.known()));
        incidents
    }

    /// The number of the selected row.
    pub(crate) fn selected(&self) -> Option<usize> {
        let selected = self.table().selected.as_ref()?;
        self.rows().iter().position(|row| row == selected)
    }

    /// Takes an event in.
    pub(crate) fn update(&mut self, event: Event) {
        match event {
            Event::Lost(why) => self.lost = Some(why),
            Event::Answer(answer) => self.take(*answer),
            Event::Interrupt => self.is_over = true,
            Event::Key(_) if self.is_helping => self.is_helping = false,
            Event::Key(key) if self.is_filtering => self.type_filter(key),
            Event::Key(key) => self.press(key),
        }
    }

    fn take(&mut self, answer: Answer) {
        self.lost = None;
        if answer.of == self.wanted() {
            self.answer = answer;
        } else {
            // The user has gone on while this answer was under way: the next one has the rest.
            let Answer { jobs, incidents, wall_ns, .. } = answer;
            self.answer = Answer { jobs, incidents, wall_ns, ..std::mem::take(&mut self.answer) };
        }
        self.has_answer = true;
        self.select_something();
    }

    fn press(&mut self, key: KeyCode) {
        match key {
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-(PAGE_ROWS as isize)),
            KeyCode::PageDown => self.move_by(PAGE_ROWS as isize),
            KeyCode::Home => self.move_by(isize::MIN),
            KeyCode::End => self.move_by(isize::MAX),
            KeyCode::Enter => self.go_down(),
            KeyCode::Esc | KeyCode::Backspace => self.go_up(),
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char('h' | '?') => self.is_helping = true,
            KeyCode::Char('s') => self.table_mut().order += 1,
            _ => {}
        }
    }

    fn type_filter(&mut self, key: KeyCode) {
        let filter = &mut self.table_mut().filter;
        match key {
            KeyCode::Char(letter) if !letter.is_control() => filter.push(letter),
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Esc => {
                filter.clear();
                self.is_filtering = false;
            }
            KeyCode::Enter => self.is_filtering = false,
            _ => {}
        }
        self.select_something();
    }

    fn go_down(&mut self) {
        if self.selected().is_none() {
            return;
        }
        self.level = match self.level {
            Level::Jobs => {
                self.forget(Level::Ranks);
                self.answer.ranks.clear();
                self.answer.series = Series::default();
                Level::Ranks
            }
            Level::Ranks => {
                self.forget(Level::Lines);
                self.answer.lines = Lines::default();
                Level::Lines
            }
            Level::Lines => Level::Lines,
        };
    }

    /// Takes the filter away; without one, goes to the level above.
    fn go_up(&mut self) {
        if !self.table().filter.is_empty() {
            self.table_mut().filter.clear();
            return;
        }
        self.level = match self.level {
            Level::Jobs | Level::Ranks => Level::Jobs,
            Level::Lines => Level::Ranks,
        };
        self.select_something();
    }

    fn move_by(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let at = self.selected().unwrap_or_default().saturating_add_signed(by).min(last);
        if let Some(row) = rows.into_iter().nth(at) {
            let is_other = self.table().selected.as_ref() != Some(&row);
            self.table_mut().selected = Some(row);
            if is_other && self.level == Level::Ranks {
                self.answer.series = Series::default();
            }
        }
    }

    /// Selects the first row where no row is.
    fn select_something(&mut self) {
        if self.selected().is_none()
            && let Some(first) = self.rows().into_iter().next()
        {
            self.table_mut().selected = Some(first);
        }
    }

    /// The rows of the table that is shown, in order.
    fn rows(&self) -> Vec<Row> {
        let line = |(line, of): &(&Line, &Holder)| Row::Line {
            device: of.device,
            frames: line.frames.clone(),
        };
        match self.level {
            Level::Jobs => self.jobs().iter().map(|job| Row::Job(job.job.clone())).collect(),
            Level::Ranks => self.ranks().iter().map(|rank| Row::Rank(rank.rank)).collect(),
            Level::Lines => self.lines().iter().map(line).collect(),
        }
    }

    fn order_of(&self, level: Level) -> usize {
        self.tables[level as usize].order
    }

    fn forget(&mut self, level: Level) {
        let table = &mut self.tables[level as usize];
        (table.selected, table.filter) = (None, String::new());
    }

    fn table(&self) -> &Table {
        &self.tables[self.level as usize]
    }

    fn table_mut(&mut self) -> &mut Table {
        &mut self.tables[self.level as usize]
    }
}

/// Allocated bytes on all devices of a rank.
fn allocated(rank: &Rank) -> u64 {
    rank.devices.iter().map(|device| device.allocated_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::samples::{answer, at};

    fn keys(model: &mut Model, keys: &str) {
        for key in keys.chars() {
            model.update(Event::Key(KeyCode::Char(key)));
        }
    }

    #[test]
    fn enter_goes_down_and_escape_goes_up() {
        let mut model = Model::default();
        model.update(Event::Answer(Box::new(answer())));
        assert_eq!((model.level, model.selected()), (Level::Jobs, Some(0)));
        assert_eq!(model.wanted(), Wanted::default());
        model.update(Event::Key(KeyCode::Down));
        model.update(Event::Key(KeyCode::Enter));
        assert_eq!((model.level, model.job()), (Level::Ranks, Some("train-7b")));
        assert_eq!(model.wanted().job.as_deref(), Some("train-7b"));
        model.update(Event::Answer(Box::new(Answer { of: model.wanted(), ..answer() })));
        assert_eq!(model.wanted().rank, Some(0));
        model.update(Event::Key(KeyCode::End));
        model.update(Event::Key(KeyCode::Enter));
        assert!(model.level == Level::Lines && model.wanted().lines && model.rank() == Some(3));
        for expected in [Level::Ranks, Level::Jobs, Level::Jobs] {
            model.update(Event::Key(KeyCode::Esc));
            assert_eq!(model.level, expected);
        }
        keys(&mut model, "q");
        assert!(model.is_over);
    }

    #[test]
    fn the_selection_stays_on_its_row_when_rows_move() {
        let mut model = at(Level::Ranks);
        model.update(Event::Key(KeyCode::Down));
        model.update(Event::Key(KeyCode::Down));
        assert_eq!((model.rank(), model.selected()), (Some(2), Some(2)));
        keys(&mut model, "s");
        assert_eq!((model.order(), model.selected()), ("growth", Some(0)));
        model.update(Event::Key(KeyCode::PageUp));
        assert_eq!(model.rank(), Some(2));
    }

    #[test]
    fn a_filter_is_typed_and_removed() {
        let mut model = at(Level::Ranks);
        keys(&mut model, "/growing");
        assert!(model.is_filtering);
        assert_eq!(model.ranks().len(), 1);
        // Keys are letters while a filter is typed.
        keys(&mut model, "q");
        assert!(!model.is_over && model.ranks().is_empty());
        model.update(Event::Key(KeyCode::Backspace));
        model.update(Event::Key(KeyCode::Enter));
        assert!(!model.is_filtering && model.rank() == Some(2));
        model.update(Event::Key(KeyCode::Esc));
        assert_eq!((model.filter(), model.level, model.ranks().len()), ("", Level::Ranks, 4));
    }

    #[test]
    fn a_lost_coordinator_leaves_the_last_answer_on_screen() {
        let mut model = at(Level::Ranks);
        model.update(Event::Lost("nothing listens".to_string()));
        assert_eq!((model.lost.as_deref(), model.ranks().len()), (Some("nothing listens"), 4));
        model.update(Event::Answer(Box::new(answer())));
        assert_eq!(model.lost, None);
    }

    #[test]
    fn an_answer_for_another_rank_does_not_change_the_selected_rank() {
        let mut model = at(Level::Lines);
        assert_eq!(model.rank(), Some(0));
        let late = Answer { of: Wanted::default(), ranks: Vec::new(), ..answer() };
        model.update(Event::Answer(Box::new(late)));
        assert_eq!(model.ranks().len(), 4);
        assert!(!model.lines().is_empty());
    }

    #[test]
    fn any_key_ends_the_help() {
        let mut model = at(Level::Jobs);
        keys(&mut model, "h");
        assert!(model.is_helping);
        keys(&mut model, "q");
        assert!(!model.is_helping && !model.is_over);
        model.update(Event::Interrupt);
        assert!(model.is_over);
    }
}
