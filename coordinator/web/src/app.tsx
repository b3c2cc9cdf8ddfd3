// The frame of the page: its views by their names in the address, the header, and what is shown
// where the coordinator knows no such thing or must know first who asks.

import { computed } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useErrorBoundary, useRef } from 'preact/hooks';

import { address, link } from './address';
import { freshness, isSignInNeeded, restart, useAnswer } from './answers';
import { missingShards, paths, report, signOut } from './api';
import { AddressNote } from './parts/address_note';
import { BaselinePill } from './parts/baseline';
import { Keys } from './parts/keys';
import { NoView } from './parts/missing';
import { theme, turnTheme } from './theme';
import { title } from './title';
import type { WhoAmI } from './types';
import { moment } from './units';
import { visible } from './visible';
import { ActionsView } from './views/actions';
import { CaptureView } from './views/capture';
import { FilesView } from './views/files';
import { HomeView } from './views/home';
import { IncidentView } from './views/incident';
import { JobView } from './views/job';
import { NodesView } from './views/nodes';
import { SignIn } from './views/sign_in';

const VIEWS = {
  jobs: HomeView,
  job: JobView,
  incident: IncidentView,
  capture: CaptureView,
  actions: ActionsView,
  nodes: NodesView,
  files: FilesView,
};
type ViewName = keyof typeof VIEWS;

const isView = (name: string): name is ViewName => Object.hasOwn(VIEWS, name);
/** The view of the address; null where there is none of that name. */
const name = computed<ViewName | null>(() => {
  const { view } = address.value;
  return isView(view) ? view : null;
});

export function App() {
  const content = useRef<HTMLElement>(null);
  const { view, id } = address.value;
  const shown = `${view}/${id}`;
  // Another view begins at its top; the same one stays where it is.
  useEffect(() => scrollTo(0, 0), [shown]);
  useEffect(() => {
    document.title = title.value ? `${visible(title.value)} · Memtape` : 'Memtape';
  }, [title.value]);
  useEffect(() => {
    if (report && !location.hash) location.replace(link(...report.start));
  }, []);
  const View = name.value ? VIEWS[name.value] : NoView;
  const skip = (event: Event) => {
    event.preventDefault();
    content.current?.focus();
  };
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>
        Skip to content
      </a>
      {report ? <ReportHead /> : <Header />}
      <main id="content" tabIndex={-1} ref={content}>
        <AddressNote />
        <BaselinePill />
        {isSignInNeeded.value ? <SignIn /> : <Guarded key={shown} view={View} id={id} />}
      </main>
      {report ? null : <Keys />}
    </>
  );
}

type View = (of: { id: string }) => ComponentChildren;

/** A view; where it cannot be drawn, the reason, so that the rest of the page stays. */
function Guarded({ view: View, id }: { view: View; id: string }) {
  const [error] = useErrorBoundary();
  if (!error) return <View id={id} />;
  const why = `This view cannot be drawn: ${String(error)}.`;
  return <p class="error">{`${why} Its figures are in the API.`}</p>;
}

const LINKS: [ViewName, string][] = [
  ['jobs', 'Jobs'],
  ['actions', 'Actions'],
  ['nodes', 'Nodes'],
];

function Header() {
  return (
    <header>
      <a class="brand" href="#/">
        Memtape
      </a>
      <nav aria-label="Views">
        {LINKS.map(([view, words]) => (
          <a href={link(view)} aria-current={view === name.value ? 'page' : undefined}>
            {words}
          </a>
        ))}
      </nav>
      <Freshness />
      <SignOut />
      <button type="button" onClick={turnTheme}>
        Theme: {theme.value}
      </button>
    </header>
  );
}

/** When the figures are from, and what is missing of them. */
function Freshness() {
  const { at, error } = freshness.value;
  if (isSignInNeeded.value) return <span id="as-of" />;
  const shards = missingShards.value;
  const isStale = error !== '' || shards !== '';
  const lacks = shards ? `✕ without shards ${shards}: no answer; ` : '';
  const failed = error ? `✕ ${error}; still trying; ` : '';
  return (
    <span id="as-of" class={isStale ? 'stale' : ''} role={isStale ? 'status' : undefined}>
      {failed}
      {lacks}
      {at ? `as of ${moment(at.getTime() * 1e6)}` : 'no answer yet'}
    </span>
  );
}

const WHOAMI_EVERY_MS = 60_000;

function SignOut() {
  const { data } = useAnswer<WhoAmI>(paths.whoami, WHOAMI_EVERY_MS);
  if (!data?.signed_in) return null;
  const leave = () =>
    signOut().then(restart, (error: Error) => {
      freshness.value = { ...freshness.value, error: `not signed out: ${error.message}` };
    });
  return (
    <button type="button" onClick={leave}>
      Sign out
    </button>
  );
}

function ReportHead() {
  const { made, start } = report!;
  const { view, id } = address.value;
  const isStart = view === start[0] && id === start[1];
  return (
    <header>
      <span class="soft">
        Memtape report, made by {made}.{' '}
        {isStart ? null : <a href={link(...start)}>Back to the start</a>}
      </span>
    </header>
  );
}
