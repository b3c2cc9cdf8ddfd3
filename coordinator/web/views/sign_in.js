// The form in which a user without a client certificate gives a token.

import { signIn } from '../api.js';
import { make } from '../elements.js';

/** The form; `onSignedIn` is called when the coordinator took the token. */
export function draw(onSignedIn) {
  const input = make('input', {
    type: 'password',
    id: 'token',
    autocomplete: 'current-password',
    required: true,
  });
  const problem = make('p', { role: 'alert' });
  const submit = async event => {
    event.preventDefault();
    try {
      await signIn(input.value.trim());
      onSignedIn();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return make(
    'form',
    { class: 'sign-in', onsubmit: submit },
    make('h1', null, 'Sign in'),
    make('p', null, 'An admin makes a token with memtape token create NAME --role viewer.'),
    make('label', { for: 'token' }, 'Token '),
    input,
    make('button', { type: 'submit' }, 'Sign in'),
    problem,
  );
}
