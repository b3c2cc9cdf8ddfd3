// The page: reads /api/v1 every two seconds and draws the view that the address bar names.
//
// The views are in views/, each with `load(id)` and `draw(data)`; its only state is the address bar
// (everything after #) and the theme. Nothing is drawn while the pointer or the keyboard is on a
// chart, or text is selected: it would be gone.

import { NotFound, NotSignedIn, isSignedIn, missing, signOut } from './api.js';
import { keepAges, make } from './elements.js';
import { route } from './route.js';
import * as actions from './views/actions.js';
import * as capture from './views/capture.js';
import * as home from './views/home.js';
import * as incident from './views/incident.js';
import * as job from './views/job.js';
import * as nodes from './views/nodes.js';
import * as signIn from './views/sign_in.js';

const REFRESH_MS = 2000;
const VIEWS = { jobs: home, job, incident, capture, actions, nodes };

// What to do where an id is not known.
const UNKNOWN = {
  job: 'Jobs that ended long ago are forgotten. The first page lists all others.',
  incident: 'It may have been forgotten, or be of another coordinator. memtape incidents lists all.',
  capture: 'It may have been deleted to make room. memtape captures lists all.',
};

const content = document.getElementById('content');
const asOf = document.getElementById('as-of');
let shown = { hash: null, key: '' };
let isRunning = false;
let isWantedAgain = false;

async function refresh() {
  if (isRunning) {
    isWantedAgain = true;
    return;
  }
  isRunning = true;
  const where = route();
  const name = Object.hasOwn(VIEWS, where.view) ? where.view : 'jobs';
  const { hash } = location;
  missing.shards = '';
  try {
    const data = await VIEWS[name].load(where.id);
    if (hash === location.hash) show(hash, name, where, data);
  } catch (error) {
    if (hash === location.hash) fail(hash, name, where, error);
  }
  isRunning = false;
  if (isWantedAgain) {
    isWantedAgain = false;
    refresh();
  }
}

function show(hash, name, where, data) {
  const key = JSON.stringify([document.documentElement.dataset.theme, dark.matches, data]);
  const isHeld = hash === shown.hash && isInUse();
  if (!isHeld && (hash !== shown.hash || key !== shown.key)) {
    replace(VIEWS[name].draw(data), pathOf(hash) !== pathOf(shown.hash));
    shown = { hash, key };
  }
  keepAges();
  document.title = where.id ? `${where.id} · Memtape` : 'Memtape';
  for (const link of document.querySelectorAll('header nav a')) {
    if (link.dataset.view === name) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  asOf.className = missing.shards ? 'stale' : '';
  const lacks = missing.shards ? `✕ without shards ${missing.shards}: no answer; ` : '';
  asOf.textContent = isHeld
    ? 'held while a chart or a selection is in use'
    : `${lacks}as of ${new Date().toLocaleTimeString()}`;
}

/** An unknown id is final, and so is one who is not known; after all else the old content stays, marked as old. */
function fail(hash, name, where, error) {
  if (error instanceof NotSignedIn) {
    asOf.textContent = '';
    if (shown.key === 'sign in') return;
    shown = { hash, key: 'sign in' };
    signOutButton.hidden = true;
    replace([signIn.draw(begin)], true);
    return;
  }
  const isUnknown = error instanceof NotFound;
  asOf.className = 'stale';
  asOf.textContent = isUnknown ? '' : `✕ ${error.message}; still trying`;
  const isShown = hash === shown.hash && (!isUnknown || shown.key === 'unknown');
  if (isShown) return;
  const isNew = pathOf(hash) !== pathOf(shown.hash);
  shown = { hash, key: isUnknown ? 'unknown' : '' };
  if (!isUnknown) {
    replace([make('p', { class: 'error' }, error.message)], isNew);
    return;
  }
  replace(
    [
      make('h1', {}, `There is no ${name} ${where.id}`),
      make('p', {}, UNKNOWN[name] ?? error.message),
      make('p', {}, make('a', { href: '#/' }, 'All jobs and incidents')),
    ],
    isNew,
  );
}

/** Puts the view in place; what was focused or opened in the same view stays so. */
function replace(parts, isNew) {
  const focused = document.activeElement?.id;
  const opened = new Map([...content.querySelectorAll('details[id]')].map(of => [of.id, of.open]));
  content.replaceChildren(...parts.flat(3).filter(Boolean));
  if (isNew) {
    scrollTo(0, 0);
    return;
  }
  for (const of of content.querySelectorAll('details[id]')) of.open = opened.get(of.id) ?? of.open;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

const pathOf = hash => hash?.split('?')[0];

const isInUse = () =>
  document.querySelector('.chart:hover, .chart :focus-visible') !== null ||
  !(document.getSelection()?.isCollapsed ?? true);

// --- the theme ---------------------------------------------------------------

const dark = matchMedia('(prefers-color-scheme: dark)');

function applyTheme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  document.getElementById('theme').textContent = `Theme: ${name}`;
}

function chosenTheme() {
  try {
    return localStorage.getItem('memtape-theme') ?? 'system';
  } catch {
    return 'system';
  }
}

document.getElementById('theme').addEventListener('click', () => {
  const names = ['system', 'light', 'dark'];
  const next = names[(names.indexOf(chosenTheme()) + 1) % names.length];
  try {
    localStorage.setItem('memtape-theme', next);
  } catch {
    /* private window: not kept */
  }
  applyTheme(next);
  refresh();
});

// --- sign-out ----------------------------------------------------------------

const signOutButton = document.getElementById('sign-out');

signOutButton.addEventListener('click', async () => {
  try {
    await signOut();
  } catch (error) {
    asOf.className = 'stale';
    asOf.textContent = `✕ not signed out: ${error.message}`;
    return;
  }
  begin();
});

async function begin() {
  refresh();
  signOutButton.hidden = !(await isSignedIn());
}

// --- the start ---------------------------------------------------------------

document.querySelector('.skip').addEventListener('click', event => {
  event.preventDefault();
  content.focus();
});
applyTheme(chosenTheme());
dark.addEventListener('change', refresh);
window.addEventListener('hashchange', refresh);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) refresh();
});
setInterval(() => {
  if (!document.hidden) refresh();
}, REFRESH_MS);
begin();
