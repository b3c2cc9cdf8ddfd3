//! Areas against a plain computation from the same records, and the size of the largest answer.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What an area of these values shows, computed step by step: the value of each rank in each
/// column.
fn plain(account: Account, values: &[(usize, Value)], steps_per_column: u64) -> Plain {
    let mut of_columns = BTreeMap::new();
    for (rank, Value { first_step, last_step, value }) in values {
        for step in *first_step..=*last_step {
            let known = of_columns.entry((step / steps_per_column, *rank)).or_insert(*value);
            *known =
                if account == Account::Allocated { *value.min(known) } else { *value.max(known) };
        }
    }
    of_columns
}

fn picture(account: Account, ranks: usize, columns: usize, steps: RangeInclusive<u64>) -> Picture {
    let grid = Grid::new(account, ranks, columns);
    Picture { grid, steps, known_from_step: None, work_left: AREA_RECORDS_MAX }
}

fn known(ranks: u32) -> Known {
    Known {
        run: RunKey { job: "train".to_string(), attempt: 0, serial: 0 },
        ranks: (0..ranks).collect(),
        keys: (0..ranks).map(|rank| SeriesKey { rank, ..SeriesKey::default() }).collect(),
        steps_left_out: 0,
        why_unknown: "nothing came".to_string(),
    }
}

/// Values by column and rank.
type Plain = BTreeMap<(u64, usize), u64>;

/// Each median and each cell has the value of the plain computation.
fn check_cells(area: &Area, expected: &Plain, ranks_per_row: usize) -> Result<(), TestCaseError> {
    let shown = |value: u64| u32::try_from((value - area.base) / area.scale).unwrap();
    let first = area.first_step.checked_div(area.steps_per_column).unwrap_or(0);
    for (index, median) in area.medians.iter().enumerate() {
        let column = first + index as u64;
        let of = |ranks: std::ops::Range<usize>| {
            expected.range((column, ranks.start)..(column, ranks.end)).map(|(_, value)| *value)
        };
        let mut all: Vec<u64> = of(0..usize::MAX).collect();
        if index > 0 && index + 1 == area.medians.len() {
            let before = expected.range((column - 1, 0)..(column, 0));
            let late = before.filter(|((_, rank), _)| !expected.contains_key(&(column, *rank)));
            all.extend(late.map(|(_, value)| *value));
        }
        all.sort_unstable();
        let middle = all.len().saturating_sub(1) / 2;
        prop_assert_eq!(*median, all.get(middle).copied().map(shown), "column {}", column);
        for (number, row) in area.rows.iter().enumerate() {
            let begin = number * ranks_per_row;
            let highest = of(begin..begin + ranks_per_row).max();
            prop_assert_eq!(row.cells[index], highest.map(shown), "row {}", number);
        }
    }
    // All steps are in a column.
    let columns = first..first + area.medians.len() as u64;
    prop_assert!(expected.keys().all(|(column, _)| columns.contains(column)));
    Ok(())
}

/// The extreme rank of each row has its highest value.
fn check_extremes(
    area: &Area,
    expected: &Plain,
    ranks_per_row: usize,
) -> Result<(), TestCaseError> {
    for (number, row) in area.rows.iter().enumerate() {
        let begin = number * ranks_per_row;
        let ranks = begin..begin + ranks_per_row;
        let of_row = expected.iter().filter(|((_, rank), _)| ranks.contains(rank));
        let highest = of_row.clone().map(|(_, value)| *value).max();
        let extreme = of_row.filter(|(_, value)| Some(**value) == highest);
        let extreme: Vec<u32> = extreme.map(|((_, rank), _)| *rank as u32).collect();
        prop_assert_eq!(row.extreme_rank.is_none(), extreme.is_empty());
        prop_assert!(row.extreme_rank.is_none_or(|rank| extreme.contains(&rank)));
    }
    Ok(())
}

proptest! {
    #[test]
    fn an_area_is_what_the_records_say(
        values in prop::collection::vec((0_usize..9, 0_u64..3000, 0_u64..40, 0_u64..5000), 1..150),
        ranks in 9_u32..12,
        ranks_per_row in 1_usize..5,
        columns in 2_usize..70,
        large in any::<bool>(),
        account in prop_oneof![Just(Account::Allocated), Just(Account::Host)],
        range in (0_u64..3000, 0_u64..3000),
        is_whole in any::<bool>(),
    ) {
        let factor = if large { 1_234_567 } else { 1 };
        let values: Vec<(usize, Value)> = values
            .into_iter()
            .map(|(rank, first_step, more, value)| {
                let last_step = first_step + more / 20 * more;
                (rank, Value { first_step, last_step, value: value * factor })
            })
            .collect();
        let (from, to) = (range.0.min(range.1), range.0.max(range.1));
        let steps = if is_whole { 0..=u64::MAX } else { from..=to };
        let [mut made, mut again] =
            [(); 2].map(|()| picture(account, ranks as usize, columns, steps.clone()));
        values.iter().for_each(|(rank, of)| made.add(*rank, *of));
        values.iter().rev().chain(&values).for_each(|(rank, of)| again.add(*rank, *of));
        let shape = Shape { ranks_per_row, columns };
        let area = known(ranks).area(account, &made, shape);
        prop_assert_eq!(&area, &known(ranks).area(account, &again, shape));
        prop_assert_eq!(area.known_from_step, values.iter().map(|(_, of)| of.first_step).min());
        prop_assert_eq!(&area.unknown, &None);

        let wanted = values.iter().filter_map(|(rank, of)| {
            let first_step = of.first_step.max(*steps.start());
            let last_step = of.last_step.min(*steps.end());
            (first_step <= last_step).then_some((*rank, Value { first_step, last_step, ..*of }))
        });
        let wanted: Vec<(usize, Value)> = wanted.collect();
        let expected = plain(account, &wanted, area.steps_per_column.max(1));
        prop_assert_eq!(area.rows.len(), (ranks as usize).div_ceil(ranks_per_row));
        prop_assert!(area.medians.len() <= columns);
        prop_assert_eq!(area.medians.is_empty(), wanted.is_empty());
        check_cells(&area, &expected, ranks_per_row)?;
        check_extremes(&area, &expected, ranks_per_row)?;
    }

    #[test]
    fn any_values_are_survived(
        values in prop::collection::vec((0_usize..3, any::<[u64; 3]>()), 0..30),
    ) {
        let mut made = picture(Account::Peak, 3, 4, 0..=u64::MAX);
        for (rank, [one, other, value]) in values {
            let (first_step, last_step) = (one.min(other), one.max(other));
            made.add(rank, Value { first_step, last_step, value });
        }
        let area = known(3).area(Account::Peak, &made, Shape { ranks_per_row: 2, columns: 4 });
        prop_assert!(area.medians.len() <= 4);
    }
}

#[test]
fn nothing_known_is_null_and_never_0() {
    let mut made = picture(Account::Pinned, 4, 8, 0..=u64::MAX);
    let shape = Shape { ranks_per_row: 1, columns: 8 };
    let area = known(4).area(Account::Pinned, &made, shape);
    assert_eq!((area.known_from_step, area.unknown.as_deref()), (None, Some("nothing came")));
    assert_eq!((area.medians.len(), area.rows.len()), (0, 4));
    assert!(area.rows.iter().all(|row| row.cells.is_empty() && row.extreme_rank.is_none()));
    for (rank, step, value) in [(1, 5, 0), (1, 9, 7), (3, 7, 7)] {
        made.add(rank, Value { first_step: step, last_step: step, value });
    }
    let area = known(4).area(Account::Pinned, &made, shape);
    let cells = |row: usize| area.rows[row].cells.clone();
    assert_eq!(cells(0), [None; 5]);
    assert_eq!(cells(1), [Some(0), None, None, None, Some(7)]);
    assert_eq!(cells(3), [None, None, Some(7), None, None]);
    assert_eq!(area.medians, [Some(0), None, Some(7), None, Some(7)]);
    assert_eq!((area.first_step, area.steps_per_column, area.scale), (5, 1, 1));
    let extremes = area.rows.iter().map(|row| row.extreme_rank);
    assert_eq!(extremes.collect::<Vec<_>>(), [None, Some(1), None, Some(3)]);
}

#[test]
fn the_newest_column_has_the_median_of_all_ranks_that_report() {
    let mut made = picture(Account::Peak, 4, 8, 0..=u64::MAX);
    for (rank, step, value) in [(0, 5, 3), (1, 5, 3), (2, 5, 9), (2, 6, 12)] {
        made.add(rank, Value { first_step: step, last_step: step, value });
    }
    let area = known(4).area(Account::Peak, &made, Shape { ranks_per_row: 1, columns: 8 });
    let medians = area.medians.iter().flatten().map(|of| area.base + u64::from(*of) * area.scale);
    assert_eq!(medians.collect::<Vec<_>>(), [3, 3], "rank 2 is the first to report step 6");
}

#[test]
fn the_largest_area_is_at_most_a_mebibyte() {
    for (rows, columns) in [(1024, 1024), (128, 1024), (1, 1024)] {
        let query = AreaQuery { rows: Some(rows), columns: Some(columns), ..AreaQuery::default() };
        let shape = Shape::of(&query, 4096, u64::MAX).unwrap();
        let mut made = picture(Account::Peak, 4096, shape.columns, 0..=u64::MAX);
        for rank in 0..4096 {
            for column in 0..shape.columns as u64 {
                let step = column << 50;
                // As long as a number of a cell can be.
                let value = u64::MAX / 2 - (rank as u64 + column);
                let value = if (rank, column) == (0, 0) { 0 } else { value };
                made.add(rank, Value { first_step: step, last_step: step, value });
            }
        }
        let mut known = known(4096);
        known.ranks.iter_mut().for_each(|rank| *rank += u32::MAX - 4096);
        let area = known.area(Account::Peak, &made, shape);
        assert_eq!((area.rows.len(), area.medians.len()), (rows, shape.columns));
        let bytes = serde_json::to_vec(&area).unwrap().len();
        println!("{rows} rows, {} columns: {bytes} bytes", shape.columns);
        assert!(bytes <= 1 << 20, "{bytes}");
    }
}

#[test]
fn a_shape_is_within_the_limits() {
    let shape = |rows, columns, ranks, values_max| {
        let query = AreaQuery { rows, columns, ..AreaQuery::default() };
        Shape::of(&query, ranks, values_max).map_err(|problem| problem.line)
    };
    let of = |ranks_per_row, columns| Ok(Shape { ranks_per_row, columns });
    assert_eq!(shape(None, None, 8, u64::MAX), of(1, 512));
    assert_eq!(shape(None, None, 16_384, u64::MAX), of(128, 256));
    assert_eq!(shape(Some(9999), Some(9999), 2048, u64::MAX), of(2, 128));
    assert_eq!(shape(Some(100), Some(1024), 130, u64::MAX), of(2, 1024));
    assert_eq!(shape(None, None, 131_072, 0), of(1024, 2));
    let too_few = |line: &str| Err(line.to_string());
    assert_eq!(shape(Some(0), None, 8, 0), too_few("rows=0 is too few: ask for 1 to 1024"));
    assert_eq!(shape(None, Some(1), 8, 0), too_few("columns=1 is too few: ask for 2 to 1024"));
}

/// The stored steps of all ranks, and of only as many as one answer reads.
#[test]
fn an_area_that_is_cut_says_so() {
    const STEPS: u64 = 600;
    let folder = tempfile::tempdir().unwrap();
    let (store, ..) = Store::open(folder.path()).unwrap();
    let key = |rank| SeriesKey { serial: 7, rank, device: 0 };
    let record = |rank: u32, step: u64| StepRecord {
        first_step: step,
        last_step: step,
        end_wall_ns: step as i64 * 100 + if step > 300 { i64::from(rank) * 7 } else { 0 },
        ..StepRecord::default()
    };
    let of = |rank| ((key(rank), (0, 0)), (1..=STEPS).map(|step| record(rank, step)).collect());
    let (done, kept) = std::sync::mpsc::channel();
    let done =
        Box::new(move |result: memtape_store::Result<()>| done.send(result.is_ok()).unwrap());
    store.steps((0..3).map(of).collect(), done);
    assert!(kept.recv().unwrap());
    let keys: Vec<SeriesKey> = (0..3).map(key).collect();
    let shape = Shape { ranks_per_row: 1, columns: 1024 };
    let read = |records_max| {
        let mut made = picture(Account::StepTime, 3, shape.columns, 0..=u64::MAX);
        made.work_left = records_max;
        made.read(&store, &keys, Account::StepTime, &Client::default()).unwrap();
        known(3).area(Account::StepTime, &made, shape)
    };
    let area = read(AREA_RECORDS_MAX);
    assert_eq!((area.is_cut, area.known_from_step), (false, Some(2)));
    for (rank, row) in area.rows.iter().enumerate() {
        let took_ns = |step: u64| 100 + if step == 301 { rank as u64 * 7 } else { 0 };
        let expected = (2..=STEPS).map(|step| Some(u32::try_from(took_ns(step) - 100).unwrap()));
        assert!(row.cells.iter().copied().eq(expected), "rank {rank}: {row:?}");
    }
    assert_eq!((area.base, area.medians[299]), (100, Some(7)));
    let cut = read(STEPS + 1);
    assert!(cut.is_cut && cut.rows[2].extreme_rank.is_none());
    assert_eq!(cut.rows[0].cells, area.rows[0].cells);
}
