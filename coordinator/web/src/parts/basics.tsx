// Small parts: a state, a number of bytes, a time, a list, a section.
//
// Every text goes in as text, never as markup: file names and command lines come from the training
// processes and are not trusted.

import { signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';

import { report } from '../api';
import type { Frame as FrameOf } from '../types';
import { bytes, duration, isKnown, moment } from '../units';
import { lineOf, spaced, stateOf } from '../words';

/** A state by its name in the API; an incident's with its class. */
export function Chip({ name, kind }: { name: string; kind?: string }) {
  const [symbol, tone, word] = stateOf(name);
  return (
    <span class={`chip ${tone}`}>
      <span aria-hidden="true">{symbol}</span> {kind ? spaced(kind) : word}
    </span>
  );
}

type SizeOf = { of: number | null | undefined; signed?: boolean };

export const Size = ({ of, signed = false }: SizeOf) => (
  <span title={isKnown(of) ? `${of} bytes` : 'not measured'}>{bytes(of, signed)}</span>
);

const iso = (wallNs: number) => new Date(wallNs / 1e6).toISOString();

export const Time = ({ at }: { at: number | null | undefined }) =>
  at ? (
    <time dateTime={iso(at)} title={iso(at)}>
      {moment(at)}
    </time>
  ) : (
    <>–</>
  );

const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

/** How long ago; in a report, which may be read long after, when. */
export const Age = ({ at }: { at: number | null | undefined }) =>
  report ? (
    <Time at={at} />
  ) : at ? (
    <time dateTime={iso(at)} title={moment(at)}>
      {duration(Math.max(0, now.value / 1000 - at / 1e9))} ago
    </time>
  ) : (
    <>–</>
  );

/** File, line and function. */
export const Frame = ({ of, tone = '' }: { of: FrameOf; tone?: string }) => (
  <code class={tone}>{`${lineOf(of)}  ${of.function}`}</code>
);

/** The frames of a stack as a cell of a table, innermost first. */
export const Stack = ({ of }: { of: FrameOf[] }) => (
  <>
    {of.map(frame => (
      <div>
        <Frame of={frame} />
      </div>
    ))}
    {of.length ? null : 'without a stack'}
  </>
);

export const Soft = ({ children }: { children: ComponentChildren }) => (
  <p class="soft">{children}</p>
);

/** Names with their values; what is null is left out, and so is a list without any. */
export const Facts = ({ of }: { of: ([string, ComponentChildren] | null)[] }) =>
  of.some(pair => pair) ? (
    <dl>
      {of.map(pair => pair && [<dt key={pair[0]}>{pair[0]}</dt>, <dd>{pair[1]}</dd>])}
    </dl>
  ) : null;

/** Sentences; `empty` where there is none. */
export const List = ({ of, empty }: { of: string[] | null | undefined; empty: string }) =>
  of?.length ? (
    <ul>
      {of.map(sentence => (
        <li>{sentence}</li>
      ))}
    </ul>
  ) : (
    <Soft>{empty}</Soft>
  );

/** A part of the view under a heading. */
export const Section = ({ title, children }: { title: string; children: ComponentChildren }) => (
  <section>
    <h2>{title}</h2>
    {children}
  </section>
);

/** A bar that is filled to a share, with its words. */
export function Meter({
  label,
  used,
  total,
}: Record<'used' | 'total', number | null> & { label: string }) {
  if (!isKnown(used) && !isKnown(total)) {
    return (
      <div class="metered">
        <span>{label}</span>
        <span class="soft">unknown</span>
      </div>
    );
  }
  const has = isKnown(total) && total > 0;
  const text = `${bytes(used)} of ${has ? bytes(total) : 'unknown'}`;
  const share = has && isKnown(used) ? Math.min(1, used / total) : 0;
  return (
    <div class="metered">
      <span>{label}</span>
      <meter min={0} max={1} high={0.9} value={share} aria-label={`${label}: ${text}`} />
      <span class="soft">{text}</span>
    </div>
  );
}

/** A command for a terminal, which wraps between its words, with a button that copies it. */
export function Command({ line }: { line: string }) {
  const copy = (event: MouseEvent) => {
    const button = event.currentTarget as HTMLButtonElement;
    const say = (word: string) => {
      button.textContent = word;
      setTimeout(() => (button.textContent = 'Copy'), 1500);
    };
    // Without TLS a browser has no clipboard.
    navigator.clipboard?.writeText(line).then(() => say('Copied'), () => say('Select it'));
    if (!navigator.clipboard) say('Select it');
  };
  return (
    <div class="command">
      <pre tabIndex={0}>
        {line.split(' ').map((word, at) => [at ? ' ' : '', <span>{word}</span>])}
      </pre>
      <button type="button" onClick={copy}>
        Copy
      </button>
    </div>
  );
}
