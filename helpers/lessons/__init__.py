"""What a lesson asks and how it answers.

`predictions` are guesses and questions, `exercises` run a training function and say what is wrong with it, `display`
shows a picture and says the same in words;
`checks` is both, under the names that readers type.
"""
