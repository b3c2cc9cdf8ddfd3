//! The columns of each table.

use memtape_core::detector::Growth;
use memtape_core::incident::FailureKind;
use memtape_core::tape::step_record_fields;

use crate::records::{ActionRecord, AttemptRecord, IncidentRecord, RankRecord, StepRecord, Totals};
use crate::tables::{Column, Kind, Row, Value};

/// A device of a rank.
#[derive(Clone, Debug)]
pub(crate) struct DeviceRow {
    pub(crate) serial: u32,
    pub(crate) rank: u32,
    pub(crate) uuid: Option<String>,
    pub(crate) totals: Totals,
}

impl DeviceRow {
    /// The devices of a rank.
    pub(crate) fn of_rank(rank: &RankRecord) -> impl Iterator<Item = Self> {
        rank.devices.iter().map(|totals| {
            let uuid = rank.device_uuids.get(usize::from(totals.device)).cloned();
            Self { serial: rank.serial, rank: rank.rank, uuid, totals: *totals }
        })
    }
}

/// A record of steps, and its series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRow {
    pub(crate) serial: u32,
    pub(crate) rank: u32,
    pub(crate) device: u8,
    pub(crate) record: StepRecord,
}

impl From<u64> for Value {
    /// Beyond `i64` the bits stay: the column says that they have no sign.
    fn from(count: u64) -> Self {
        Self::Number(Some(count as i64))
    }
}

impl From<u32> for Value {
    fn from(count: u32) -> Self {
        u64::from(count).into()
    }
}

impl From<u8> for Value {
    fn from(count: u8) -> Self {
        u64::from(count).into()
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(Some(number))
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&str> for Value {
    /// An empty text stands for nothing.
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_string()).filter(|text| !text.is_empty()))
    }
}

/// The types of a step record's fields.
trait OfStep {
    const KIND: Kind;
}

impl OfStep for u64 {
    const KIND: Kind = Kind::Count;
}

/// The only field with a sign is a time.
impl OfStep for i64 {
    const KIND: Kind = Kind::Time;
}

/// A number that may not be known.
fn number<T: Into<i64>>(number: Option<T>) -> Value {
    Value::Number(number.map(Into::into))
}

/// A count that may not be known.
fn count(count: Option<u64>) -> Value {
    count.map_or(Value::Number(None), Value::from)
}

fn text<T: AsRef<str>>(text: Option<T>) -> Value {
    text.as_ref().map_or(Value::Text(None), |text| text.as_ref().into())
}

/// The kind of a column: its name in [`Kind`], or an expression in brackets.
macro_rules! kind {
    ($kind:ident) => {
        Kind::$kind
    };
    ($kind:expr) => {
        $kind
    };
}

/// Makes the row of a record of a list of columns.
macro_rules! table {
    ($row:ty = $table:literal;
     $($name:ident: $kind:tt, $meaning:literal, |$it:ident| $value:expr;)+) => {
        impl Row for $row {
            const TABLE: &'static str = $table;

            fn columns() -> Vec<Column<Self>> {
                vec![$(Column {
                    name: stringify!($name),
                    kind: kind!($kind),
                    meaning: $meaning,
                    value: |$it| $value.into(),
                }),+]
            }
        }
    };
}

table! { AttemptRecord = "attempts";
    attempt_serial: Attempt, "Number of the attempt, unique in the cluster", |it| it.serial;
    job: Text, "Id of the job", |it| it.job.as_str();
    user_id: Count, "User id of the job's owner", |it| it.owner.uid;
    namespace: Text, "Kubernetes namespace of the job's owner", |it| it.owner.namespace.name();
    attempt: Count, "Number of the attempt, by the launcher", |it| it.attempt;
    ranks: Count, "Ranks of the job", |it| known(it.world_size);
    started: Time, "Start of the rank that came first", |it| it.started_wall_ns;
    ended: Time, "End; null while it runs", |it| number(it.ended_wall_ns);
}

table! { RankRecord = "ranks";
    attempt_serial: Attempt, "Number of the attempt, unique in the cluster", |it| it.serial;
    rank: Count, "Rank within the job", |it| it.rank;
    node: Text, "Name of the node", |it| it.node.as_str();
    started: Time, "Start of the process", |it| it.start_wall_ns;
    ended: Time, "End of the process; null while it runs",
        |it| number(it.end.map(|_| it.end_wall_ns));
    end: Text, "Kind of the end; null while it runs", |it| text(it.end.map(|end| end.as_str()));
    exit_status: Number, "Exit status, or the signal as a negative number",
        |it| number(it.exit_status);
    steps: Count, "Steps that were finished when this was written", |it| it.step;
    steps_left_out: Count, "Step records beyond the rates, which are not kept",
        |it| it.steps_left_out;
}

table! { DeviceRow = "devices";
    attempt_serial: Attempt, "Number of the attempt, unique in the cluster", |it| it.serial;
    rank: Count, "Rank within the job", |it| it.rank;
    device: Count, "Number of the device in the process", |it| it.totals.device;
    uuid: Text, "UUID of the device", |it| text(it.uuid.as_deref());
    size_bytes: Count, "Memory of the device", |it| known(it.totals.device_bytes);
    peak_allocated_bytes: Count, "Most bytes handed out at once", |it| it.totals.peak_allocated;
    failed_requests: Count, "Requests for memory that failed for good", |it| it.totals.ooms;
}

table! { IncidentRecord = "incidents";
    id: Text, "Id of the incident", |it| it.id.as_str();
    attempt_serial: Attempt, "Number of the attempt, unique in the cluster", |it| it.serial;
    job: Text, "Id of the job", |it| it.job.as_str();
    rank: Count, "Rank that it is about; of several one", |it| it.growth.rank;
    device: Count, "Number of the device in the process; null where it is about none",
        |it| number(Some(it.growth.device).filter(|_| it.growth.layer.names_device()));
    class: Text, "Kind of trouble", |it| it.class().as_str();
    layer: Text, "Kind of memory that grows, or the condition; null for a failure",
        |it| text(finding(it).map(|of| of.layer.as_str()));
    scope: Text, "Which ranks have it; null for a failure",
        |it| text(finding(it).map(|of| of.scope.as_str()));
    urgency: Text, "Notice, ticket or page", |it| it.urgency.as_str();
    failure: Text, "Its failure: `out_of_memory`, or the kind of the end",
        |it| text(it.failure.as_ref().map(|of| failure(of.kind)));
    related_id: Text, "The failure that it ended in, or the growth that ended in it",
        |it| text(it.related.as_deref());
    reported_in: Text, "The incident that reports the same cause",
        |it| text(it.reported_in.as_deref());
    opened: Time, "Begin", |it| it.opened_wall_ns;
    closed: Time, "End; null while it is open", |it| number(it.closed.map(|of| of.wall_ns));
    onset_step: Count, "Step at which it began; null for a failure",
        |it| count(finding(it).map(|_| it.onset_step()));
    detected_step: Count, "Step at which it was found", |it| it.growth.detected_step;
    bytes_per_step: Count,
        "Bytes kept of each step; of the layer `blocks` blocks; null where nothing grows",
        |it| count(growth(it).map(|of| of.bytes_per_step));
    grown_bytes: Count,
        "Bytes grown since the onset; of the layer `blocks` blocks; null where nothing grows",
        |it| count(growth(it).map(|of| of.grown_bytes));
    file: Text, "File of the line that allocated what is kept",
        |it| text(culprit(it).map(|of| of.file.as_str()));
    line: Count, "Number of that line", |it| number(culprit(it).map(|of| of.line));
    function: Text, "Function of that line", |it| text(culprit(it).map(|of| of.function.as_str()));
    capture_id: Text, "Capture of the diagnosis", |it| text(it.capture_id.as_deref());
    sentence: Text, "What happened, in one sentence", |it| it.sentence().as_str();
}

table! { ActionRecord = "actions";
    id: Text, "Id of the action", |it| it.id.as_str();
    kind: Text, "Kind of the action", |it| it.kind.as_str();
    target: Text, "What carries it out", |it| it.target.as_str();
    incident_id: Text, "The incident; null for an action on a node", |it| it.incident_id.as_str();
    job: Text, "Id of the job; null for an action on a node", |it| it.job.as_str();
    attempt: Count, "Number of the attempt, by the launcher; null for an action on a node",
        |it| number(Some(it.attempt).filter(|_| !it.job.is_empty()));
    node: Text, "Node of the rank, or the node to keep out", |it| it.node.as_str();
    is_dry_run: Flag, "Whether it was only shown", |it| it.dry_run;
    decided: Time, "Time of the decision", |it| it.wall_ns;
    outcome: Text, "What came of it, in words", |it| it.outcome.to_string().as_str();
    verdict: Text, "Whether it helped; null while that is not known",
        |it| text(it.verdict.map(|of| of.as_str()));
}

/// Makes the columns of the list of a record's fields, behind those that name the series.
macro_rules! step_columns {
    ($(#[doc = $meaning:literal] $name:ident: $type:ty,)+) => {
        table! { StepRow = "steps";
            attempt_serial: Attempt, "Number of the attempt, unique in the cluster", |it| it.serial;
            rank: Count, "Rank within the job", |it| it.rank;
            device: Count, "Number of the device in the process", |it| it.device;
            $($name: (<$type as OfStep>::KIND), $meaning, |it| it.record.$name;)+
        }
    };
}

step_record_fields!(step_columns);

/// A number whose 0 stands for one that is not known.
fn known(number: impl Into<u64>) -> Value {
    count(Some(number.into()).filter(|number| *number > 0))
}

/// What an incident is about; none of a failure.
fn finding(incident: &IncidentRecord) -> Option<&Growth> {
    Some(&incident.growth).filter(|_| incident.failure.is_none())
}

/// The growth that an incident is about; none of a failure, and of a condition.
fn growth(incident: &IncidentRecord) -> Option<&Growth> {
    finding(incident).filter(|growth| growth.layer.grows())
}

/// The line that allocated what is kept.
fn culprit(incident: &IncidentRecord) -> Option<&memtape_core::snapshot::Frame> {
    incident.diagnosis.as_ref().and_then(|of| of.culprit.as_ref())
}

fn failure(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::OutOfMemory => "out_of_memory",
        FailureKind::Died(end) => end.as_str(),
    }
}
