// What is shown in place of a view whose answer is not there: it is awaited, or the coordinator
// refused it, or knows no such thing.

import { address } from '../address';
import { NotFound, report } from '../api';
import { useTitle } from '../title';
import { Soft } from './basics';

// What to do where an id is not known.
const UNKNOWN: Record<string, string> = {
  job: 'Jobs that ended long ago are forgotten. The first page lists all others.',
  incident:
    'It may have been forgotten, or be of another coordinator. memtape incidents lists all.',
  capture: 'It may have been deleted to make room. memtape captures lists all.',
};

/** A part of a view that the report lacks. */
export const NotHeld = () => (
  <Soft>A report does not hold this; the coordinator's page shows it.</Soft>
);

export function Missing({ view, id, error }: { view: string; id: string; error: Error | null }) {
  if (!error) return <p class="soft">asking the coordinator…</p>;
  if (!(error instanceof NotFound)) return <p class="error">{error.message}</p>;
  if (report) return <h1>{`This report does not hold ${view} ${id}`}</h1>;
  return (
    <>
      <h1>{`There is no ${view} ${id}`}</h1>
      <p>{UNKNOWN[view] ?? error.message}</p>
      <WayHome />
    </>
  );
}

/** What is shown for an address of no view. */
export function NoView() {
  const heading = `There is no view ${address.value.view}`;
  useTitle(heading);
  return (
    <>
      <h1>{heading}</h1>
      {report ? null : <WayHome />}
    </>
  );
}

const WayHome = () => (
  <p>
    <a href="#/">All jobs and incidents</a>
  </p>
);
