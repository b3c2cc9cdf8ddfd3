// The form in which a user without a client certificate gives a token.

import { useEffect, useRef, useState } from 'preact/hooks';

import { restart } from '../answers';
import { signIn } from '../api';
import { Command } from '../parts/basics';
import { memtape } from '../terminal';
import { useTitle } from '../title';

export function SignIn() {
  const field = useRef<HTMLInputElement>(null);
  const [problem, setProblem] = useState('');
  const [isAsking, setIsAsking] = useState(false);
  useTitle('Sign in');
  useEffect(() => field.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (isAsking) return;
    setIsAsking(true);
    try {
      await signIn(field.current!.value.trim());
      restart();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setIsAsking(false);
      field.current?.select();
    }
  };
  return (
    <form class="sign-in" onSubmit={submit}>
      <h1>Sign in</h1>
      <p>The coordinator shows its data to users with a token. An admin makes one:</p>
      <Command line={memtape('token', 'create', 'NAME', '--role', 'viewer')} />
      <p>
        <label for="token">Token</label>{' '}
        <input
          type="password"
          id="token"
          ref={field}
          autocomplete="current-password"
          aria-describedby="sign-in-problem"
          aria-invalid={problem !== ''}
          required
        />{' '}
        <button type="submit">Sign in</button>
      </p>
      <p class="error" role="alert" id="sign-in-problem">
        {problem}
      </p>
    </form>
  );
}
